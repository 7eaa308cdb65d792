"""Tests of launches, studies and what is made of them."""

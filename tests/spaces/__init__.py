"""Tests of the space language."""

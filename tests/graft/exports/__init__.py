"""Tests of what leaves the database."""

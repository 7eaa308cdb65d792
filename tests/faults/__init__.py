"""Tests of what a study survives."""

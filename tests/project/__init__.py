"""Tests of the project itself: its documents, benchmarks and rules."""

"""Tests of samplers, stopping, steering and statistics."""

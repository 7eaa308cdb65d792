"""Tests of what trains."""

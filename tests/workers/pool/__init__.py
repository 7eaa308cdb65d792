"""Tests of workers: in this process, in others, on Ray."""

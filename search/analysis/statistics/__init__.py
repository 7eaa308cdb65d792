"""Intervals, tests, aggregates and corrections, which know nothing of studies."""

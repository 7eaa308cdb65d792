"""Tests of reports and figures."""

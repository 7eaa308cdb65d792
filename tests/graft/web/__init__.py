"""Tests of the server and its pages."""

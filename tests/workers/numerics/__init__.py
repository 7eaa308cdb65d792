"""Tests of kernels, recordings and random streams."""

"""Formulas of numbers in C++ for GPU kernels (`fusion`), lane programs and row functions."""

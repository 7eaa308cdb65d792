"""Formulas of numbers in C++: for kernels of a GPU (`fusion`), programs of a lane and row functions."""

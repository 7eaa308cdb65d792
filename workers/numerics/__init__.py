"""Computation for training: tensors, random numbers, recorded functions and compiled code."""

"""Gradients and outputs of packaged models in C++: the same numbers as torch's, from the same random bytes."""

"""Gradients and outputs of packaged models in C++: torch's numbers, from the same random bytes."""

"""What all of training computes with: tensors, random numbers, parameter layouts, recorded functions, compiled code."""

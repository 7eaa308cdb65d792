"""CUDA C++ kernels: `compiler` compiles them where they run, `driver` loads and launches them.

The source of the fused step, `minimal`, is here; the rules that it keeps are in threads.hpp.
"""

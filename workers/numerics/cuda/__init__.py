"""Kernels for NVIDIA's GPUs in CUDA C++, compiled where they run (`compiler`), loaded and launched by `driver`.

Here lie the sources of the fused step; the rules that they keep are in threads.hpp.
"""

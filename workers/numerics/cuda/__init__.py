"""Kernels for NVIDIA's GPUs in CUDA C++, compiled where they run (`compiler`), loaded and launched by `driver`.

Here lies the source of the fused step, `minimal`; the rules that it keeps are in threads.hpp.
"""

// a * b + c, rounded once, of numbers (fused.hpp has it of registers). Compilers are told to fuse nothing by themselves (-ffp-contract=off):
// GCC would do so across statements and clang within them, and the same source would give two patterns of bits.
//
// A processor without the instruction (x86 before 2013) rounds twice: the C library would take a hundred cycles.
#pragma once

#if defined(__FMA__) || defined(__aarch64__)
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
inline float multiply_add(float a, float b, float c) { return a * b + c; }
inline double multiply_add(double a, double b, double c) { return a * b + c; }
#endif

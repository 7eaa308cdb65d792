// The vector instructions that a library was compiled for, which decide the bits of its sums: every library has it.
#pragma once

extern "C" inline __attribute__((used, weak)) const char *instruction_set() {
#if defined(__AVX512F__)
    return "AVX512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__aarch64__)
    return "NEON";
#else
    return "DEFAULT";
#endif
}

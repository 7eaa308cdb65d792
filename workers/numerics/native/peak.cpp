// The most that a core multiplies and adds: what a benchmark holds the steps against. Not called by any step.
#include "registers.hpp"

using namespace registers;

constexpr int CHAINS = 10; // two multipliers that each take four ticks are kept busy, and 16 registers are enough

// Numbers that are multiplied and added `rounds` times each; their sum, which depends on all of it, is at `out`.
extern "C" int64_t multiply_adds(int64_t rounds, float *out) {
    V<float> sums[CHAINS], total = {};
    for (int n = 0; n < CHAINS; n++) sums[n] = all(float(n));
    const V<float> factor = all(0.999f), more = all(1e-3f);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 10
        for (int n = 0; n < CHAINS; n++) sums[n] = multiply_add(sums[n], factor, more);
    }
    for (int n = 0; n < CHAINS; n++) total += sums[n];
    *out = sum<float>(total);
    return CHAINS * W<float>;
}

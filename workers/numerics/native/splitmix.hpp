// SplitMix64 by counter, as in workers/numerics/randomness.py.
#pragma once
#include <cstdint>

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

// The finalizer.
inline uint64_t splitmix_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
// Word i, from 0, of the stream with this state.
inline uint64_t splitmix_word(uint64_t state, uint64_t i) { return splitmix_mix(state + (i + 1) * GOLDEN); }

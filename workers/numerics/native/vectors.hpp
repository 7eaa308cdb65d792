// Vector registers, and how many numbers they hold. Wider ones than the processor has would be put together from its own,
// of which there are then too few for a tile of sums.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__)
constexpr std::size_t BYTES = 64;
constexpr int TILE_COLUMNS = 6; // by four rows: of 32 registers
#else
constexpr std::size_t BYTES = 32;
constexpr int TILE_COLUMNS = 3; // of 16
#endif

template <typename T> struct Lanes;
template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(BYTES)));
    typedef int32_t I __attribute__((vector_size(BYTES)));
};
template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(BYTES)));
    typedef int64_t I __attribute__((vector_size(BYTES)));
};
template <typename T> using V = typename Lanes<T>::V;
template <typename T> using I = typename Lanes<T>::I;
template <typename T> constexpr int W = BYTES / sizeof(T);

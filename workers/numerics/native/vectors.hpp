// Vector registers of 64 bytes, and how many numbers they hold.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr std::size_t BYTES = 64;

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

// Vector registers of the processor that this is compiled for, by the compiler's own vector types.
//
// V<T> is a register of W<T> numbers, I<T> one of as many integers. Everything that works on rows pads them to whole
// registers, so that no loop has a remainder; what a row's padding holds is never read as a number of the model.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "exchange.hpp"
#include "fused.hpp"

namespace registers {

// GRAFT_REGISTER_BYTES: registers of another width, which the compiler then puts together; for tests.
#if defined(GRAFT_REGISTER_BYTES)
constexpr std::size_t REGISTER_BYTES = GRAFT_REGISTER_BYTES;
#elif defined(__AVX512F__)
constexpr std::size_t REGISTER_BYTES = 64;
#elif defined(__AVX__)
constexpr std::size_t REGISTER_BYTES = 32;
#else
constexpr std::size_t REGISTER_BYTES = 16;
#endif
constexpr std::size_t LINE_BYTES = 64;

template <typename T> struct Kind;
template <> struct Kind<float> {
    typedef float V __attribute__((vector_size(REGISTER_BYTES)));
    typedef int32_t I __attribute__((vector_size(REGISTER_BYTES)));
    typedef int32_t Integer;
};
template <> struct Kind<double> {
    typedef double V __attribute__((vector_size(REGISTER_BYTES)));
    typedef int64_t I __attribute__((vector_size(REGISTER_BYTES)));
    typedef int64_t Integer;
};
template <typename T> using V = typename Kind<T>::V;
template <typename T> using I = typename Kind<T>::I;
template <typename T> using Integer = typename Kind<T>::Integer;
template <typename T> constexpr int W = REGISTER_BYTES / sizeof(T);

template <typename T> inline V<T> load(const T *from) {
    V<T> value;
    std::memcpy(&value, from, REGISTER_BYTES);
    return value;
}
template <typename T> inline void store(T *to, V<T> value) { std::memcpy(to, &value, REGISTER_BYTES); }

// x in every place. x - 0 is x to the bit, which the compiler knows; 0 + x is not, for x = -0.
template <typename T> inline V<T> all(T x) { return x - V<T>{}; }

template <typename T> inline V<T> larger(V<T> a, V<T> b) { return a > b ? a : b; }
template <typename T> inline V<T> smaller(V<T> a, V<T> b) { return a < b ? a : b; }
template <typename T> inline V<T> absolute(V<T> a) { return a < T(0) ? -a : a; }

// Over a register, in halves: an order that depends on nothing.
template <typename T> inline T sum(V<T> value) {
    T parts[W<T>];
    store<T>(parts, value);
    for (int half = W<T> / 2; half; half /= 2)
        for (int n = 0; n < half; n++) parts[n] += parts[n + half];
    return parts[0];
}
template <typename T> inline T largest(V<T> value) {
    T parts[W<T>];
    store<T>(parts, value);
    for (int half = W<T> / 2; half; half /= 2)
        for (int n = 0; n < half; n++) parts[n] = parts[n + half] > parts[n] ? parts[n + half] : parts[n];
    return parts[0];
}

// 0, 1, 2, ...
template <typename T> inline I<T> counting() {
    I<T> places;
    for (int n = 0; n < W<T>; n++) places[n] = n;
    return places;
}
// The register at `from`, part of a row of `count` numbers of which it holds those from `first` on; zero beyond.
template <typename T> inline V<T> load_within(const T *from, int first, int count) {
    const V<T> value = load<T>(from);
    if (first + W<T> <= count) return value;
    return counting<T>() < Integer<T>(count - first) ? value : V<T>{};
}

inline int padded(int count, int to) { return (count + to - 1) / to * to; }

// Numbers from one row to the next: whole registers, and no multiple of 512 bytes, as rows that far apart would share
// few sets of the first-level cache.
template <typename T> inline int row_stride(int count) {
    const int whole = padded(count, W<T>);
    return whole * sizeof(T) % 512 ? whole : whole + W<T>;
}

// W rows of W numbers, turned in place, in log2 W rounds.
template <typename T, int K> inline void turn_pairs(V<T> *rows) {
#pragma GCC unroll 16
    for (int n = 0; n < W<T>; n++)
        if (!(n & K)) exchange<V<T>, I<T>, K>(rows[n], rows[n | K], std::make_index_sequence<W<T>>());
}
template <typename T> inline void turn(V<T> *rows) {
    turn_pairs<T, 1>(rows);
    if constexpr (W<T> >= 4) turn_pairs<T, 2>(rows);
    if constexpr (W<T> >= 8) turn_pairs<T, 4>(rows);
    if constexpr (W<T> >= 16) turn_pairs<T, 8>(rows);
}

// to[c][i] = from[i][c]; both are read and written in whole registers, so `to` has padded(columns) rows of padded(rows)
// numbers, and zeros stand where `from` has no row.
template <typename T>
inline void transpose(T *to, std::ptrdiff_t to_stride, const T *from, std::ptrdiff_t from_stride, int rows, int columns) {
    for (int i = 0; i < rows; i += W<T>)
        for (int c = 0; c < columns; c += W<T>) {
            V<T> block[W<T>];
#pragma GCC unroll 16
            for (int n = 0; n < W<T>; n++)
                block[n] = i + n < rows ? load<T>(from + (i + n) * from_stride + c) : V<T>{};
            turn<T>(block);
#pragma GCC unroll 16
            for (int n = 0; n < W<T>; n++) store<T>(to + (c + n) * to_stride + i, block[n]);
        }
}

} // namespace registers

// The step by which a block of numbers in vector registers is transposed, as each compiler can say it.
#pragma once
#include <cstddef>
#include <utility>

// What lies across the diagonal of blocks of 2 K is exchanged between two registers that are rows K apart. I: a register
// of as many integers of the same size. N: 0 to W - 1.
template <typename V, typename I, int K, std::size_t... N> inline void exchange(V &a, V &b, std::index_sequence<N...>) {
    constexpr int W = sizeof...(N);
#if defined(__clang__) // knows constant places alone
    const V low = __builtin_shufflevector(a, b, (int(N) & K ? W + (int(N) ^ K) : int(N))...);
    b = __builtin_shufflevector(a, b, (int(N) & K ? W + int(N) : int(N) ^ K)...);
#else
    const V low = __builtin_shuffle(a, b, I{(int(N) & K ? W + (int(N) ^ K) : int(N))...});
    b = __builtin_shuffle(a, b, I{(int(N) & K ? W + int(N) : int(N) ^ K)...});
#endif
    a = low;
}

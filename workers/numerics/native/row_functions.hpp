// Around generated functions of rows: what they call, and under which names they are found.
#pragma once
#include <alloca.h>

#include "rows.hpp"

namespace rows {

typedef V<T> N;
inline N number(T x) { return all(x); }
// Room for the keys of a row, in registers.
#define ROW_OF_KEYS(count)                                                                                               \
    reinterpret_cast<T *>((reinterpret_cast<std::uintptr_t>(alloca(((count) + 1) * sizeof(N))) + sizeof(N) - 1) /         \
                          sizeof(N) * sizeof(N))

} // namespace rows

#define SCORER                                                                                                           \
    extern "C" {                                                                                                         \
    int register_bytes() { return int(sizeof(rows::N)); }                                                                \
    using namespace rows;                                                                                                \
    void weigh_along(const T *a, const T *b, T *c, T *d, std::ptrdiff_t e, const int *f, int g, int h, int i) {          \
        weigh<Along<T>>(a, b, c, d, e, f, g, h, i);                                                                      \
    }                                                                                                                    \
    void weigh_beside(const T *a, const T *b, T *c, T *d, std::ptrdiff_t e, const int *f, int g, int h, int i) {         \
        weigh<Beside<T>>(a, b, c, d, e, f, g, h, i);                                                                     \
    }                                                                                                                    \
    void gradient_along(const T *a, const T *b, const T *c, const T *d, T *e, T *f, std::ptrdiff_t g, const int *h,      \
                        int i, int j, int k) {                                                                           \
        gradient<Along<T>>(a, b, c, d, e, f, g, h, i, j, k);                                                             \
    }                                                                                                                    \
    void gradient_beside(const T *a, const T *b, const T *c, const T *d, T *e, T *f, std::ptrdiff_t g, const int *h,     \
                         int i, int j, int k) {                                                                          \
        gradient<Beside<T>>(a, b, c, d, e, f, g, h, i, j, k);                                                            \
    }                                                                                                                    \
    void finish(const T *a, const T *b, T *c) { finish_numbers(a, b, c); }                                               \
    }

#define ACTIVATION                                                                                                       \
    extern "C" {                                                                                                         \
    int register_bytes() { return int(sizeof(rows::N)); }                                                                \
    using namespace rows;                                                                                                \
    void activate_rows(const T *a, T *b, T *c, std::ptrdiff_t d, std::ptrdiff_t e, std::ptrdiff_t f, int g, int h,       \
                       int i) {                                                                                          \
        activate<Along<T>>(a, b, c, d, e, f, g, h, i);                                                                   \
    }                                                                                                                    \
    }
#define LEARNED_ACTIVATION                                                                                               \
    extern "C" {                                                                                                         \
    void learn_rows(const T *a, const T *b, const T *c, T *d, std::ptrdiff_t e, std::ptrdiff_t f, std::ptrdiff_t g,      \
                    int h, int i, int j) {                                                                               \
        learn<Along<T>>(a, b, c, d, e, f, g, h, i, j);                                                                   \
    }                                                                                                                    \
    void finish(const T *a, const T *b, T *c) { finish_numbers(a, b, c); }                                               \
    }

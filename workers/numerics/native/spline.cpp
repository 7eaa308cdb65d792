// Linear splines on evenly spaced knots, and their gradients, as workers/networks/activations/_spline.py has them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "vectors.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

// Points are worked on a vector at a time; the last ones are filled up.
typedef double Pair __attribute__((vector_size(2 * sizeof(double))));

constexpr int COPIES = 4; // of the sums by cell: neighbouring points mostly share a cell, and would wait for its sum

// A cell of the spline: value at its left end, and rise to its right one. They lie side by side, to be fetched at once.
template <typename T> struct Cell {
    T left, rise;
};

// The cells of one lane, with one of rise 0 added at either end.
template <typename T> struct Cells {
    std::vector<Cell<T>> cells;
    V<T> low, scale, last;

    Cells(const T *knots, int n, double low_, double scale_)
        : cells(n + 1), low(V<T>{} + T(low_)), scale(V<T>{} + T(scale_)), last(V<T>{} + T(n - 1)) {
        cells[0] = {knots[0], 0};
        for (int i = 0; i < n; i++) cells[i + 1] = {knots[i], i + 1 < n ? knots[i + 1] - knots[i] : 0};
    }

    // In which cell each point is, and how far from its left end, in widths; what is no number is so in the first cell.
    void place(V<T> points, I<T> &cell, V<T> &share) const {
        const V<T> at = (points - low) * scale, first = V<T>{} - T(1);
        V<T> below;
        for (int i = 0; i < W<T>; i++) below[i] = std::floor(at[i]);
        below = below >= first ? below : first;
        below = below <= last ? below : last;
        cell = __builtin_convertvector(below, I<T>) + 1;
        share = at - below;
    }

    void fetch(I<T> cell, V<T> &left, V<T> &rise) const {
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == sizeof(float)) { // a cell is as large as a double: half the memory accesses
            const auto index = (__m512i)cell;
            const auto *from = reinterpret_cast<const double *>(cells.data());
            const auto one = _mm512_castpd_ps(_mm512_i32gather_pd(_mm512_castsi512_si256(index), from, sizeof(double)));
            const auto two = _mm512_castpd_ps(_mm512_i32gather_pd(_mm512_extracti64x4_epi64(index, 1), from, sizeof(double)));
            const auto even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            left = (V<T>)_mm512_permutex2var_ps(one, even, two);
            rise = (V<T>)_mm512_permutex2var_ps(one, _mm512_or_si512(even, _mm512_set1_epi32(1)), two);
            return;
        }
#endif
        for (int i = 0; i < W<T>; i++) left[i] = cells[cell[i]].left;
        for (int i = 0; i < W<T>; i++) rise[i] = cells[cell[i]].rise;
    }
};

template <typename T> V<T> read(const T *from, std::ptrdiff_t count) {
    V<T> values{};
    std::memcpy(&values, from, std::min<std::ptrdiff_t>(count, W<T>) * sizeof(T));
    return values;
}

template <typename T> void write(V<T> values, T *to, std::ptrdiff_t count) {
    std::memcpy(to, &values, std::min<std::ptrdiff_t>(count, W<T>) * sizeof(T));
}

// Whole vectors first, so that their length is known where they are read and written.
template <typename Work> void for_vectors(std::ptrdiff_t count, int width, Work work) {
    std::ptrdiff_t first = 0;
    for (; first + width <= count; first += width) work(first, std::ptrdiff_t(width));
    if (first < count) work(first, count - first);
}

template <typename T>
int forward(int lanes, std::ptrdiff_t count, int n, const T *points, const T *knots, const double *low,
            const double *scale, T *values) try {
    for (int lane = 0; lane < lanes; lane++, points += count, values += count, knots += n) {
        const Cells<T> cells(knots, n, low[lane], scale[lane]);
        for_vectors(count, W<T>, [&](std::ptrdiff_t first, std::ptrdiff_t here) {
            I<T> cell;
            V<T> share, left, rise;
            cells.place(read(points + first, here), cell, share);
            cells.fetch(cell, left, rise);
            write<T>(left + share * rise, values + first, here);
        });
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}

// The gradient by a lane's knots from the sums of gradients, and of gradients times the share, by cell.
template <typename T> void by_knots(const std::vector<Pair> &sums, int n, T *gradient) {
    std::fill_n(gradient, n, T(0));
    double carried = 0; // from the cell on the left
    for (int k = 0; k <= n; k++) {
        Pair sum{0, 0};
        for (int copy = 0; copy < COPIES; copy++) sum += sums[std::size_t(k) * COPIES + copy];
        const double shared = k == 0 || k == n ? 0 : sum[1]; // beyond the ends nothing rises
        gradient[std::max(k - 1, 0)] += T(sum[0] - shared + carried);
        carried = shared;
    }
}

// Gradients by points and, unless `knots_gradient` is null, by knots.
template <typename T>
int backward(int lanes, std::ptrdiff_t count, int n, const T *gradient, const T *points, const T *knots,
             const double *low, const double *scale, T *points_gradient, T *knots_gradient) try {
    std::vector<Pair> sums(std::size_t(COPIES) * (n + 1));
    for (int lane = 0; lane < lanes; lane++, points += count, gradient += count, points_gradient += count) {
        const Cells<T> cells(knots + std::size_t(lane) * n, n, low[lane], scale[lane]);
        std::fill(sums.begin(), sums.end(), Pair{0, 0});
        for_vectors(count, W<T>, [&](std::ptrdiff_t first, std::ptrdiff_t here) {
            I<T> cell;
            V<T> share, left, rise;
            const V<T> slope = read(gradient + first, here);
            cells.place(read(points + first, here), cell, share);
            cells.fetch(cell, left, rise);
            write<T>(slope * rise * cells.scale, points_gradient + first, here);
            if (!knots_gradient) return;
            const V<T> product = slope * share; // of what fills up the last ones, zero
            for (int i = 0; i < W<T>; i++)
                sums[std::size_t(cell[i]) * COPIES + i % COPIES] += Pair{double(slope[i]), double(product[i])};
        });
        if (knots_gradient) by_knots(sums, n, knots_gradient + std::size_t(lane) * n);
    }
    return 0;
} catch (const std::exception &) {
    return 1;
}

} // namespace

// Points and values [L][count], knots [L][n], low and scale [L]. They return 0, or 1 if memory ran out.
#define GRAFT_SPLINE(NAME, T)                                                                                          \
    extern "C" int spline_##NAME(int lanes, std::ptrdiff_t count, int n, const T *points, const T *knots,              \
                                 const double *low, const double *scale, T *values) {                                  \
        return forward<T>(lanes, count, n, points, knots, low, scale, values);                                         \
    }                                                                                                                  \
    extern "C" int spline_gradient_##NAME(int lanes, std::ptrdiff_t count, int n, const T *gradient, const T *points,  \
                                          const T *knots, const double *low, const double *scale, T *points_gradient, \
                                          T *knots_gradient) {                                                         \
        return backward<T>(lanes, count, n, gradient, points, knots, low, scale, points_gradient, knots_gradient);     \
    }
GRAFT_SPLINE(float32, float)
GRAFT_SPLINE(float64, double)

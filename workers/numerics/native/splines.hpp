// A linear spline on evenly spaced knots, constant beyond their ends, and its gradients, as
// workers/networks/activations/_spline.py has them.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "registers.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace registers {

template <typename T> class Spline {
  public:
    int knots = 0;
    bool learned = true;
    T low = 0, scale = 0; // the first knot's place, knots per unit

    void read(const T *values) {
        cells_.resize(knots + 1);
        cells_[0] = {values[0], T(0)};
        for (int n = 0; n < knots; n++) cells_[n + 1] = {values[n], n + 1 < knots ? values[n + 1] - values[n] : T(0)};
        sums_.assign(std::size_t(COPIES) * (knots + 1), Pair{0, 0});
    }
    void values(const T *points, T *to, std::ptrdiff_t count) const {
        each(points, count, [&](auto first, auto here, I<T>, V<T> share, V<T> left, V<T> rise) {
            write_first(left + share * rise, to + first, here);
        });
    }
    // Gradients by points and, unless it is null, by knots, to which it adds.
    void gradients(const T *gradient, const T *points, T *by_points, T *by_knots, std::ptrdiff_t count) {
        each(points, count, [&](auto first, auto here, I<T> cell, V<T> share, V<T>, V<T> rise) {
            const V<T> slope = read_first(gradient + first, here);
            write_first(slope * rise * scale, by_points + first, here);
            if (by_knots) learn_from(cell, share, slope);
        });
        if (by_knots) write(by_knots);
    }
    // Values, and slopes in place of points.
    void apply(T *points, T *values, std::ptrdiff_t count) const {
        each(points, count, [&](auto first, auto here, I<T>, V<T> share, V<T> left, V<T> rise) {
            write_first(left + share * rise, values + first, here);
            write_first(rise * scale, points + first, here);
        });
    }
    void learn(const T *points, const T *gradient, std::ptrdiff_t count) {
        each(points, count, [&](auto first, auto here, I<T> cell, V<T> share, V<T>, V<T>) {
            learn_from(cell, share, read_first(gradient + first, here));
        });
    }
    void learn_from(I<T> cell, V<T> share, V<T> gradient) {
        const V<T> product = gradient * share; // of what fills up the last ones, zero
        for (int i = 0; i < W<T>; i++)
            sums_[std::size_t(cell[i]) * COPIES + i % COPIES] += Pair{double(gradient[i]), double(product[i])};
    }
    // Adds the knots' gradient. A cell's value is left + share * rise; beyond the ends nothing rises.
    void write(T *gradient) const {
        double carried = 0; // from the cell on the left
        for (int n = 0; n <= knots; n++) {
            Pair sum{0, 0};
            for (int copy = 0; copy < COPIES; copy++) sum += sums_[std::size_t(n) * COPIES + copy];
            const double shared = n == 0 || n == knots ? 0 : sum[1];
            gradient[std::max(n - 1, 0)] += T(sum[0] - shared + carried);
            carried = shared;
        }
    }

    // Calls work(first, how many, cell, share, left, rise) for a register of points at a time; the last one is filled up.
    // Whole registers first, so that their length is known where they are read and written.
    template <typename Work> void each(const T *points, std::ptrdiff_t count, Work work) const {
        std::ptrdiff_t first = 0;
        const auto one = [&](auto here) {
            I<T> cell;
            V<T> share, left, rise;
            place(read_first(points + first, here), cell, share);
            fetch(cell, left, rise);
            work(first, here, cell, share, left, rise);
        };
        for (; first + W<T> <= count; first += W<T>) one(std::integral_constant<int, W<T>>());
        if (first < count) one(int(count - first));
    }

    template <typename Count> static V<T> read_first(const T *from, Count count) {
        V<T> values{};
        std::memcpy(&values, from, count * sizeof(T));
        return values;
    }
    template <typename Count> static void write_first(V<T> values, T *to, Count count) {
        std::memcpy(to, &values, count * sizeof(T));
    }

  private:
    // The value at a cell's left end, and the rise to its right one, side by side to be fetched at once; of knots + 1
    // cells those at either end have rise 0.
    struct Cell {
        T left, rise;
    };
    typedef double Pair __attribute__((vector_size(2 * sizeof(double))));
    static constexpr int COPIES = 4; // of the sums: neighbouring points mostly share a cell, and would wait for its sum

    std::vector<Cell> cells_;
    std::vector<Pair> sums_; // by cell: of gradients, and of gradients times the share of the cell

    // In which cell each point is, and how far from its left end, in widths; what is no number is so in the first cell.
    void place(V<T> points, I<T> &cell, V<T> &share) const {
        const V<T> at = (points - low) * scale, first = all(T(-1)), last = all(T(knots - 1));
        V<T> below;
        for (int i = 0; i < W<T>; i++) below[i] = std::floor(at[i]);
        below = below >= first ? below : first;
        below = below <= last ? below : last;
        cell = __builtin_convertvector(below, I<T>) + 1;
        share = at - below;
    }
    void fetch(I<T> cell, V<T> &left, V<T> &rise) const {
#if defined(__AVX512F__)
        if constexpr (sizeof(V<T>) == 64 && sizeof(T) == 4) { // a cell is as large as a double: half the memory accesses
            const auto index = (__m512i)cell;
            const auto *from = reinterpret_cast<const double *>(cells_.data());
            const auto one = _mm512_castpd_ps(_mm512_i32gather_pd(_mm512_castsi512_si256(index), from, sizeof(double)));
            const auto two = _mm512_castpd_ps(_mm512_i32gather_pd(_mm512_extracti64x4_epi64(index, 1), from, sizeof(double)));
            const auto even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            left = (V<T>)_mm512_permutex2var_ps(one, even, two);
            rise = (V<T>)_mm512_permutex2var_ps(one, _mm512_or_si512(even, _mm512_set1_epi32(1)), two);
            return;
        }
#endif
        for (int i = 0; i < W<T>; i++) left[i] = cells_[cell[i]].left;
        for (int i = 0; i < W<T>; i++) rise[i] = cells_[cell[i]].rise;
    }
};

} // namespace registers

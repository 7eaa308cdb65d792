// Matrices with all singular values about 1, by the Newton-Schulz iteration of workers/training/optimizers/muon.py:
//
//     G = X X^T,  X <- a X + (b G + c G G) X
//
// X has at most as many rows as columns. Sums run in ascending order, so that bits depend on the numbers alone.
//
// Legend: r rows and c columns of X.
#pragma once
#include <algorithm>
#include <cmath>

#include "memory.hpp"
#include "products.hpp"

namespace registers {

constexpr double ITERATION[] = {3.4445, -4.7750, 2.0315}, LEAST_NORM = 1e-7;

template <typename T> class NewtonSchulz {
  public:
    // Makes room for an X of up to so many rows and columns.
    void lay_out(Memory &memory, int rows, int columns) {
        for (T **each : {&x_, &next_}) *each = memory.take<T>(std::size_t(rows) * row_stride<T>(columns));
        for (T **each : {&gram_, &polynomial_}) *each = memory.take<T>(std::size_t(rows) * row_stride<T>(rows));
        turned_ = memory.take<T>(std::size_t(padded(columns, W<T>)) * row_stride<T>(rows));
    }

    // X from number(i, e), the number in row i and column e, scaled to a Frobenius norm of at most 1.
    template <typename Number> void read(int rows, int columns, Number number) {
        r_ = rows, c_ = columns;
        double squares = 0;
        for (int i = 0; i < r_; i++)
            for (int e = 0; e < c_; e++) {
                const T value = x_[i * stride() + e] = number(i, e);
                squares += double(value) * double(value);
            }
        const T norm = std::max(T(std::sqrt(squares)), T(LEAST_NORM)); // a norm that is no number stays none
        for (int i = 0; i < r_; i++)
            for (int e = 0; e < c_; e++) x_[i * stride() + e] /= norm;
    }

    void iterate() {
        const int side = row_stride<T>(r_);
        const T a = T(ITERATION[0]), b = T(ITERATION[1]), c = T(ITERATION[2]);
        transpose(turned_, side, x_, stride(), r_, c_);
        product(gram_, side, x_, stride(), turned_, side, c_, r_, zero<T>());
        product(polynomial_, side, gram_, side, gram_, side, r_, r_, zero<T>());
        for (int n = 0; n < r_ * side; n++) polynomial_[n] = b * gram_[n] + c * polynomial_[n];
        for (int n = 0; n < r_ * stride(); n++) next_[n] = a * x_[n];
        product(next_, stride(), polynomial_, side, x_, stride(), r_, c_, {next_, stride()});
        std::swap(x_, next_);
    }

    T operator()(int i, int e) const { return x_[i * stride() + e]; }

  private:
    int r_ = 0, c_ = 0;
    T *x_ = nullptr, *next_ = nullptr, *turned_ = nullptr, *gram_ = nullptr, *polynomial_ = nullptr;

    int stride() const { return row_stride<T>(c_); }
    // Y = start + A B of r_ rows, where sums have `count` terms.
    void product(T *y, int y_stride, const T *a, int a_stride, const T *b, int b_stride, int count, int columns,
                 Start<T> start) {
        for (int e = 0, end = padded(columns, W<T>); e < end; e += PANEL<T>)
            multiply<T, Side::rows>(y + e, y_stride, a, a_stride, b + e, b_stride, r_, count, std::min(end - e, PANEL<T>),
                                    start.at(e));
    }
};

} // namespace registers

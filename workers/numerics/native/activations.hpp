// Activations with their slopes, so that the gradient needs no more than a product: generated ones, and the linear spline,
// which looks numbers up in a table that it learns and so is no formula of one number. An MLP has one, and a scorer of
// features of queries and keys.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "given.hpp"

namespace registers {

// A linear spline on evenly spaced knots, constant beyond their ends (workers/networks/activations/_spline.py).
template <typename T> struct Spline {
    int knots = 0;
    T low = 0, scale = 0; // the first knot's place, knots per unit
    bool learned = true;
    std::vector<T> left, rise;    // of knots + 1 cells: one of rise 0 at either end
    std::vector<double> sums;     // by cell: of gradients, and of gradients times the share of the cell, side by side

    void read(const T *values) {
        left.assign(knots + 1, values[0]);
        rise.assign(knots + 1, T(0));
        for (int n = 0; n < knots; n++) {
            left[n + 1] = values[n];
            rise[n + 1] = n + 1 < knots ? values[n + 1] - values[n] : T(0);
        }
        sums.assign(2 * (knots + 1), 0.0);
    }
    // In which cell a point is, and how far from its left end, in widths; what is no number is in the first.
    int cell(T point, T &share) const {
        const T at = (point - low) * scale;
        T below = std::floor(at);
        below = below >= T(-1) ? below : T(-1);
        below = below <= T(knots - 1) ? below : T(knots - 1);
        share = at - below;
        return int(below) + 1;
    }
    void apply(T *points, T *values, int count) const {
        for (int c = 0; c < count; c++) {
            T share;
            const int n = cell(points[c], share);
            values[c] = left[n] + share * rise[n];
            points[c] = rise[n] * scale;
        }
    }
    void learn(const T *points, const T *gradient, int count) {
        for (int c = 0; c < count; c++) {
            T share;
            const int n = cell(points[c], share);
            sums[2 * n] += gradient[c];
            sums[2 * n + 1] += double(gradient[c] * share);
        }
    }
    // Adds the knots' gradient. A cell's value is left + share * (right - left); beyond the ends nothing rises.
    void write(T *gradient) const {
        double carried = 0; // from the cell on the left
        for (int n = 0; n <= knots; n++) {
            const double shared = n == 0 || n == knots ? 0 : sums[2 * n + 1];
            gradient[n > 1 ? n - 1 : 0] += T(sums[2 * n] - shared + carried);
            carried = shared;
        }
    }
};

// Where generated functions are, and what they need: as `described` of workers/networks/gradients/activating.py.
enum ActivationField {
    ACTIVATE, LEARN_ACTIVATION, FINISH_ACTIVATION, ACTIVATION_GIVEN, ACTIVATION_LEARNED, ACTIVATION_TOTALS,
    ACTIVATION_KNOTS, ACTIVATION_FIELDS // a spline has knots and no functions; learned: 1, or 0 where it is frozen
};

// An activation, or none. Rows of a generated one (workers/numerics/rows/activations.py) have one or several parts, each padded
// to whole registers.
template <typename T> class Activation : public Given<T> {
    using Given<T>::given_, Given<T>::numbers;

  public:
    bool on() const { return activate_ || spline_.knots; }
    bool learns() const { return this->learned || (spline_.knots && spline_.learned); }
    int places() const { return spline_.knots ? 1 : this->learned; } // of which it is told where they lie

    void take(const int64_t *described, const int64_t *places) {
        if (described[ACTIVATION_KNOTS]) {
            spline_.knots = int(described[ACTIVATION_KNOTS]), spline_.learned = described[ACTIVATION_LEARNED];
            knots_ = places[0], this->knobs = 2;
            return;
        }
        activate_ = reinterpret_cast<Activate>(described[ACTIVATE]);
        learn_ = reinterpret_cast<Learn>(described[LEARN_ACTIVATION]);
        this->lay_out(described[FINISH_ACTIVATION], described[ACTIVATION_GIVEN], described[ACTIVATION_LEARNED],
                      described[ACTIVATION_TOTALS], places);
    }
    void read_knobs(const T *values) {
        if (spline_.knots)
            spline_.low = values[0], spline_.scale = values[1];
        else
            Given<T>::read_knobs(values);
    }
    void read(const T *parameters) {
        if (spline_.knots)
            spline_.read(parameters + knots_);
        else
            Given<T>::read(parameters);
    }
    void write(T *gradient) const {
        if (!spline_.knots)
            Given<T>::write(gradient);
        else if (spline_.learned)
            spline_.write(gradient + knots_);
    }
    // Rows of hidden numbers become slopes, and `out` what the activation makes of them.
    void apply(T *hidden, int hidden_stride, T *out, int out_stride, int rows, int width) const {
        for (int r = 0; spline_.knots && r < rows; r++)
            spline_.apply(hidden + std::ptrdiff_t(r) * hidden_stride, out + std::ptrdiff_t(r) * out_stride, width);
        if (spline_.knots) return;
        const int whole = padded(width, W<T>);
        activate_(numbers(given_), hidden, out, hidden_stride, out_stride, whole, rows, width, whole / W<T>);
    }
    // Adds to the sums of what is learned; `hidden` as it was before.
    void learn(const T *hidden, int hidden_stride, const T *gradient, int stride, int rows, int width) {
        if (!learns()) return;
        for (int r = 0; spline_.knots && r < rows; r++)
            spline_.learn(hidden + std::ptrdiff_t(r) * hidden_stride, gradient + std::ptrdiff_t(r) * stride, width);
        if (spline_.knots) return;
        const int whole = padded(width, W<T>);
        this->clear();
        learn_(numbers(given_), hidden, gradient, this->added(), hidden_stride, stride, whole, rows, width, whole / W<T>);
        this->add_up();
    }

    // Rows of queries or keys become features; `slopes` get theirs and `points`, where it learns, what they were.
    void make_features(T *rows, T *slopes, T *points, int stride, int count, int width) const {
        for (std::ptrdiff_t at = 0; at < std::ptrdiff_t(count) * stride; at += stride) {
            std::memcpy(slopes + at, rows + at, sizeof(T) * width);
            if (points) std::memcpy(points + at, rows + at, sizeof(T) * width);
        }
        apply(slopes, stride, rows, stride, count, width);
    }
    // From the gradient by features to that by queries or keys, in place.
    void make_features_gradient(T *gradient, const T *slopes, const T *points, int stride, int count, int width) {
        learn(points, stride, gradient, stride, count, width);
        for (int r = 0; r < count; r++) {
            T *__restrict to = gradient + std::ptrdiff_t(r) * stride;
            const T *__restrict factors = slopes + std::ptrdiff_t(r) * stride;
            for (int c = 0; c < width; c++) to[c] *= factors[c];
        }
    }

  private:
    typedef void (*Activate)(const T *, T *, T *, std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t, int, int, int);
    typedef void (*Learn)(const T *, const T *, const T *, T *, std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t, int, int,
                          int);
    Activate activate_ = nullptr;
    Learn learn_ = nullptr;
    Spline<T> spline_;
    int64_t knots_ = 0; // where they start in the lane's parameters
};

// Slopes times the gradient by what the activation made: the gradient by the hidden numbers, in the slopes' place.
template <typename T>
void activate_gradient(T *slopes, int slopes_stride, const T *gradient, int gradient_stride, int rows, int width,
                       int parts) {
    const int pitch = padded(width, W<T>);
    for (int r = 0; r < rows; r++, slopes += slopes_stride, gradient += gradient_stride)
        for (int c = 0; c < width; c += W<T>) {
            const V<T> g = load<T>(gradient + c);
            for (int n = 0; n < parts; n++) store<T>(slopes + n * pitch + c, load<T>(slopes + n * pitch + c) * g);
        }
}

} // namespace registers

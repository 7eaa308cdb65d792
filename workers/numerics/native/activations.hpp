// Activations with their slopes, so that the gradient needs no more than a product: generated ones, and the linear spline,
// which looks numbers up in a table that it learns and so is no formula of one number. An MLP has one, and a scorer of
// features of queries and keys.
#pragma once
#include <cstring>

#include "given.hpp"
#include "splines.hpp"

namespace registers {

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
    int offsets() const { return spline_.knots ? 1 : this->learned; } // of which it is told where they lie

    void take(const int64_t *described, const int64_t *offsets) {
        if (described[ACTIVATION_KNOTS]) {
            spline_.knots = int(described[ACTIVATION_KNOTS]), spline_.learned = described[ACTIVATION_LEARNED];
            knots_ = offsets[0], this->knobs = 2;
            return;
        }
        activate_ = reinterpret_cast<Activate>(described[ACTIVATE]);
        learn_ = reinterpret_cast<Learn>(described[LEARN_ACTIVATION]);
        this->lay_out(described[FINISH_ACTIVATION], described[ACTIVATION_GIVEN], described[ACTIVATION_LEARNED],
                      described[ACTIVATION_TOTALS], offsets);
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

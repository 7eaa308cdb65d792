// Activations of an MLP with their slopes, so that the gradient needs no more than a product.
#pragma once
#include <cmath>
#include <vector>

#include "functions.hpp"

namespace registers {

// In the order of workers/networks/gradients/layered.py; from `glu` on gated: gate(first) * second.
enum class Activation { identity, relu, relu_squared, tanh, gelu, gelu_tanh, spline, glu, geglu, swiglu, reglu };

// Value and slope of a function of one number.
template <typename T> inline void of_gelu(V<T> x, V<T> &value, V<T> &slope) {
    V<T> distribution, density;
    normal(x, distribution, density);
    value = x * distribution;
    slope = multiply_add(x, density, distribution);
}
template <typename T> inline void of_gelu_tanh(V<T> x, V<T> &value, V<T> &slope) {
    const T root = T(0.79788456080286535588), cubic = T(0.044715);
    const V<T> square = x * x, t = hyperbolic_tangent(V<T>(root * (x + cubic * square * x)));
    value = T(0.5) * x * (T(1) + t);
    slope = T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * root * (T(1) + 3 * cubic * square);
}
template <typename T> inline void of_tanh(V<T> x, V<T> &value, V<T> &slope) {
    value = hyperbolic_tangent(x);
    slope = T(1) - value * value;
}
template <typename T> inline void of_logistic(V<T> x, V<T> &value, V<T> &slope) {
    value = logistic<T>(x);
    slope = value * (T(1) - value);
}
template <typename T> inline void of_silu(V<T> x, V<T> &value, V<T> &slope) {
    const V<T> share = logistic<T>(x);
    value = x * share;
    slope = multiply_add(value, V<T>(T(1) - share), share);
}
template <typename T> inline void of_relu(V<T> x, V<T> &value, V<T> &slope) {
    value = x < T(0) ? V<T>{} : x; // what is no number stays none
    slope = x > T(0) ? all(T(1)) : V<T>{};
}
template <typename T> inline void of_relu_squared(V<T> x, V<T> &value, V<T> &slope) {
    const V<T> positive = x < T(0) ? V<T>{} : x;
    value = positive * positive;
    slope = T(2) * positive;
}
template <typename T> inline void of_identity(V<T> x, V<T> &value, V<T> &slope) {
    value = x;
    slope = all(T(1));
}

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

// Rows of hidden numbers become slopes, and `out` what the activation makes of them.
template <typename T, void FUNCTION(V<T>, V<T> &, V<T> &)>
inline void activate_plain(T *hidden, T *out, int width) {
    for (int c = 0; c < width; c += W<T>) {
        V<T> value, slope;
        FUNCTION(load<T>(hidden + c), value, slope);
        store<T>(out + c, value);
        store<T>(hidden + c, slope);
    }
}
// Gated: the slope by the first half, then that by the second, `pitch` numbers on.
template <typename T, void FUNCTION(V<T>, V<T> &, V<T> &)>
inline void activate_gated(T *hidden, T *out, int width, int pitch) {
    for (int c = 0; c < width; c += W<T>) {
        V<T> value, slope;
        const V<T> second = load<T>(hidden + pitch + c);
        FUNCTION(load<T>(hidden + c), value, slope);
        store<T>(out + c, value * second);
        store<T>(hidden + c, slope * second);
        store<T>(hidden + pitch + c, value);
    }
}
template <typename T>
void activate(Activation kind, T *hidden, int hidden_stride, T *out, int out_stride, int rows, int width,
              const Spline<T> &spline) {
    const int pitch = padded(width, W<T>);
    for (int r = 0; r < rows; r++, hidden += hidden_stride, out += out_stride) switch (kind) {
        case Activation::identity: activate_plain<T, of_identity<T>>(hidden, out, width); break;
        case Activation::relu: activate_plain<T, of_relu<T>>(hidden, out, width); break;
        case Activation::relu_squared: activate_plain<T, of_relu_squared<T>>(hidden, out, width); break;
        case Activation::tanh: activate_plain<T, of_tanh<T>>(hidden, out, width); break;
        case Activation::gelu: activate_plain<T, of_gelu<T>>(hidden, out, width); break;
        case Activation::gelu_tanh: activate_plain<T, of_gelu_tanh<T>>(hidden, out, width); break;
        case Activation::spline: spline.apply(hidden, out, width); break;
        case Activation::glu: activate_gated<T, of_logistic<T>>(hidden, out, width, pitch); break;
        case Activation::geglu: activate_gated<T, of_gelu<T>>(hidden, out, width, pitch); break;
        case Activation::swiglu: activate_gated<T, of_silu<T>>(hidden, out, width, pitch); break;
        case Activation::reglu: activate_gated<T, of_relu<T>>(hidden, out, width, pitch); break;
        }
}
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

// Activations of an MLP with their slopes, number by number: as activations.hpp of workers/numerics/native.
#pragma once
#include "functions.hpp"

// In the order of workers/networks/gradients/layered.py; from GLU on gated: gate(first) * second.
enum Activation { IDENTITY, RELU, RELU_SQUARED, TANH, GELU, GELU_TANH, SPLINE, GLU, GEGLU, SWIGLU, REGLU };

struct Activated {
    float value, slope;
};

__device__ inline float absolute(float x) { return x < 0.0f ? -x : x; }
// Below 0.625 x + x^3 P(x^2) (Cephes), above by e^(-2 |x|).
__device__ inline float hyperbolic_tangent(float x) {
    const float y = absolute(x), square = x * x;
    float p = -5.70498872745e-3f;
    p = multiply_add(p, square, 2.06390887954e-2f);
    p = multiply_add(p, square, -5.37397155531e-2f);
    p = multiply_add(p, square, 1.33314422036e-1f);
    p = multiply_add(p, square, -3.33332819422e-1f);
    const float near = multiply_add(x * square, p, x), power = exponential(-2.0f * y);
    const float far = 1.0f - 2.0f * power / (1.0f + power);
    return y < 0.625f ? near : x < 0.0f ? -far : far;
}
__device__ inline float logistic(float x) {
    const float small = exponential(x < 0.0f ? x : -x);
    return (x < 0.0f ? small : 1.0f) / (1.0f + small);
}
// x Phi(x). Phi(-y) for y >= 0 is e^(-y^2 / 2) times a polynomial in 1 / (1 + 0.26 y), fitted in its relative error
// (6e-9) on 0 .. 14.5.
__device__ inline Activated of_gelu(float x) {
    const float y = absolute(x), t = 1.0f / multiply_add(0.26f, y, 1.0f), power = exponential(-0.5f * (x * x));
    float p = 0.0340773669f;
    p = multiply_add(p, t, -0.171328808f);
    p = multiply_add(p, t, 0.292859908f);
    p = multiply_add(p, t, -0.203277678f);
    p = multiply_add(p, t, 0.202136746f);
    p = multiply_add(p, t, 0.0301412338f);
    p = multiply_add(p, t, 0.109844216f);
    p = multiply_add(p, t, 0.101638973f);
    p = multiply_add(p, t, 0.103915671f);
    p = multiply_add(p, t, -7.62612349e-06f);
    const float tail = power * p, distribution = x < 0.0f ? tail : 1.0f - tail;
    return {x * distribution, multiply_add(x, power * 0.398942280f, distribution)};
}
__device__ inline Activated of_gelu_tanh(float x) {
    const float root = 0.79788456080286535588f, cubic = 0.044715f, square = x * x;
    const float t = hyperbolic_tangent(root * (x + cubic * square * x));
    return {0.5f * x * (1.0f + t),
            0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * root * (1.0f + 3.0f * cubic * square)};
}
__device__ inline Activated of_relu(float x) { return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f}; }

// A linear spline on evenly spaced knots, constant beyond their ends (workers/networks/activations/_spline.py): knots + 1
// cells, of which the first and the last rise by 0.
struct Spline {
    const float *values; // [knots]
    int knots;
    float low, scale;    // the first knot's place, knots per unit

    // In which cell a point is, and how far from its left end, in widths; what is no number is in the first.
    __device__ int cell(float point, float &share) const {
        const float at = (point - low) * scale;
        float below = floorf(at);
        below = below >= -1.0f ? below : -1.0f;
        below = below <= float(knots - 1) ? below : float(knots - 1);
        share = at - below;
        return int(below) + 1;
    }
    __device__ Activated operator()(float point) const {
        float share;
        const int n = cell(point, share);
        const float left = values[n > 0 ? n - 1 : 0], rise = n > 0 && n < knots ? values[n] - left : 0.0f;
        return {left + share * rise, rise * scale};
    }
};

// The function of one number, which a gated activation applies to its first half.
__device__ inline Activated activate(int kind, float x) {
    switch (kind) {
    case RELU:
    case REGLU: return of_relu(x);
    case RELU_SQUARED: {
        const float positive = x < 0.0f ? 0.0f : x;
        return {positive * positive, 2.0f * positive};
    }
    case TANH: {
        const float value = hyperbolic_tangent(x);
        return {value, 1.0f - value * value};
    }
    case GELU:
    case GEGLU: return of_gelu(x);
    case GELU_TANH: return of_gelu_tanh(x);
    case GLU: {
        const float value = logistic(x);
        return {value, value * (1.0f - value)};
    }
    case SWIGLU: {
        const float share = logistic(x), value = x * share;
        return {value, multiply_add(value, 1.0f - share, share)};
    }
    default: return {x, 1.0f};
    }
}

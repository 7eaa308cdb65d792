// Exponential, logarithm, tanh, the logistic function and the normal distribution, a register at a time.
//
// float: own polynomials, within two units in the last place or so. double is for tests: the C library's, one by one.
// What is no number stays none.
#pragma once
#include <cmath>
#include <initializer_list>

#include "registers.hpp"

namespace registers {

template <typename Function> inline V<double> each(V<double> x, Function function) {
    for (int n = 0; n < W<double>; n++) x[n] = function(x[n]);
    return x;
}

// e^x; what is below the smallest normal number comes out as it. Cody-Waite reduction and the Taylor polynomial on
// [-ln 2 / 2, ln 2 / 2].
inline V<float> exponential(V<float> x) {
    x = x < -87.0f ? all(-87.0f) : x;
    x = x > 89.0f ? all(89.0f) : x;           // becomes infinity below
    const V<float> shifted = multiply_add(x, all(1.44269504f), all(12582912.0f)); // 1.5 * 2^23: rounds to the nearest integer
    const V<float> whole = shifted - 12582912.0f;
    const V<float> r = multiply_add(whole, all(2.12194440e-4f), multiply_add(whole, all(-0.693359375f), x));
    V<float> p = all(1.0f / 5040);
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = multiply_add(p, r, all(c));
    const I<float> bits = ((I<float>)shifted + 127) << 23;
    return p * (V<float>)bits;
}
inline V<double> exponential(V<double> x) {
    return each(x, [](double y) { return std::exp(y); });
}

// ln x of a normal number above 0; what is none would look like one. The exponent, and the series of artanh on the rest in
// [1 / sqrt 2, sqrt 2].
inline V<float> logarithm_of_normal(V<float> x) {
    const I<float> bits = (I<float>)x, exponent = (bits - 0x3F3504F3) >> 23;
    const V<float> m = (V<float>)(bits - (exponent << 23));
    const V<float> t = (m - 1.0f) / (m + 1.0f), square = t * t;
    V<float> p = all(2.0f / 9);
    for (float c : {2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f}) p = multiply_add(p, square, all(c));
    return multiply_add(__builtin_convertvector(exponent, V<float>), all(0.693147181f), t * p);
}
// ln x for x >= 1; what is no number stays none.
inline V<float> logarithm(V<float> x) { return logarithm_of_normal(x) + (x - x); }
inline V<double> logarithm(V<double> x) {
    return each(x, [](double y) { return std::log(y); });
}

// ln(1 + x) for x >= 0. The logarithm of the rounded 1 + x, and to first order what the rounding left out.
inline V<float> logarithm_of_1_plus(V<float> x) {
    const V<float> y = 1.0f + x, lost = (x - (y - 1.0f)) / y;
    return (y < 3e38f ? logarithm_of_normal(y) + lost : y); // infinity, and what is no number, as they are
}
inline V<double> logarithm_of_1_plus(V<double> x) {
    return each(x, [](double y) { return std::log1p(y); });
}

// Below 0.625 x + x^3 P(x^2) (Cephes), above by e^(2 |x|).
inline V<float> hyperbolic_tangent(V<float> x) {
    const V<float> y = absolute<float>(x), square = x * x;
    V<float> p = all(-5.70498872745e-3f);
    for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) p = multiply_add(p, square, all(c));
    const V<float> near = multiply_add(x * square, p, x);
    const V<float> far = 1.0f - 2.0f / (exponential(2.0f * y) + 1.0f);
    return y < 0.625f ? near : (x < 0.0f ? -far : far);
}
inline V<double> hyperbolic_tangent(V<double> x) {
    return each(x, [](double y) { return std::tanh(y); });
}

// 1 / (1 + e^-x).
template <typename T> inline V<T> logistic(V<T> x) {
    const V<T> small = exponential(V<T>(x < T(0) ? x : -x));
    return (x < T(0) ? small : all(T(1))) / (T(1) + small);
}

// The normal distribution function Phi, and its density. float: Phi(-y) for y >= 0 is e^(-y^2 / 2) times a slowly falling
// function of y, here a polynomial in 1 / (1 + 0.26 y), fitted in its relative error (6e-9) on 0 .. 14.5.
inline void normal(V<float> x, V<float> &distribution, V<float> &density) {
    const V<float> y = absolute<float>(x), t = 1.0f / multiply_add(all(0.26f), y, all(1.0f));
    const V<float> power = exponential(-0.5f * (x * x));
    V<float> p = all(0.0340773669f);
    for (float c : {-0.171328808f, 0.292859908f, -0.203277678f, 0.202136746f, 0.0301412338f, 0.109844216f, 0.101638973f,
                    0.103915671f, -7.62612349e-06f})
        p = multiply_add(p, t, all(c));
    const V<float> tail = power * p;
    distribution = x < 0.0f ? tail : 1.0f - tail;
    density = power * 0.398942280f;
}
inline void normal(V<double> x, V<double> &distribution, V<double> &density) {
    distribution = each(x, [](double y) { return 0.5 * std::erfc(-y * std::sqrt(0.5)); });
    density = each(x, [](double y) { return std::exp(-0.5 * y * y) * 0.39894228040143267794; });
}

} // namespace registers

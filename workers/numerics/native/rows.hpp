// Rows of numbers as generated functions go through them (workers/numerics/rows): the registers of a row, sums over it, and
// the functions of one number under the names that workers/numerics/codegen/formulas.py has.
//
// A row's keys lie along registers, W of them in each, or W rows lie beside one another, one key of each in a register. What
// belongs to a whole row is a register too, the same number in every place or each row's own: both need the same text.
#pragma once
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "functions.hpp"

namespace rows {

using registers::all;
using registers::Integer;
using registers::load;
using registers::store;
using registers::V;
using registers::W;

#define INFINITY_OF(T) std::numeric_limits<T>::infinity()
#define NAN_OF(T) std::numeric_limits<T>::quiet_NaN()

// Every place has the sum of all, or the largest: pairs K apart, in an order that depends on nothing.
template <int K, typename R, std::size_t... N> inline R swapped(R x, std::index_sequence<N...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, x, (int(N) ^ K)...);
#else
    typedef std::conditional_t<sizeof(x[0]) == 4, int32_t, int64_t> Whole;
    typedef Whole Places __attribute__((vector_size(sizeof(R))));
    return __builtin_shuffle(x, Places{Whole(int(N) ^ K)...});
#endif
}
template <typename T, int K, typename Join> inline V<T> join_pairs(V<T> x, Join join) {
    if constexpr (K == 0)
        return x;
    else
        return join_pairs<T, K / 2>(join(x, swapped<K>(x, std::make_index_sequence<W<T>>())), join);
}

// Rows whose keys lie along registers.
template <typename T> struct Along {
    static constexpr int KEPT = 1; // numbers that are kept of a row's own number
    int visible;
    int registers() const { return (visible + W<T> - 1) / W<T>; }
    // Register n with `other` where there is no visible key.
    V<T> seen(V<T> x, int n, T other) const {
        const int left = visible - n * W<T>;
        return left >= W<T> ? x : (::registers::counting<T>() < Integer<T>(left) ? x : all(other));
    }
    static V<T> sum(V<T> x) { return join_pairs<T, W<T> / 2>(x, [](V<T> a, V<T> b) { return a + b; }); }
    static V<T> largest(V<T> x) { return join_pairs<T, W<T> / 2>(x, [](V<T> a, V<T> b) { return a > b ? a : b; }); }
    static V<T> smallest(V<T> x) { return join_pairs<T, W<T> / 2>(x, [](V<T> a, V<T> b) { return a < b ? a : b; }); }
    static void keep(T *to, V<T> x) { *to = x[0]; }
    static V<T> kept(const T *from) { return all(*from); }
    // Of a number of each row, what is added to a register of totals: one place's, as all have the same.
    static V<T> once(V<T> x) { return ::registers::counting<T>() < Integer<T>(1) ? x : V<T>{}; }
};
// W rows with as many visible keys, beside one another.
template <typename T> struct Beside {
    static constexpr int KEPT = W<T>;
    int visible;
    int registers() const { return visible; }
    static V<T> seen(V<T> x, int, T) { return x; }
    static V<T> sum(V<T> x) { return x; }
    static V<T> largest(V<T> x) { return x; }
    static V<T> smallest(V<T> x) { return x; }
    static void keep(T *to, V<T> x) { store<T>(to, x); }
    static V<T> kept(const T *from) { return load<T>(from); }
    static V<T> once(V<T> x) { return x; }
};

// Whether two registers hold the same numbers; what is no number is the same as itself.
template <typename R> inline bool same(R a, R b) {
    const auto differ = (a != b) & ((a == a) | (b == b));
    bool any = false;
    for (int n = 0; n < int(sizeof(R) / sizeof(a[0])); n++) any |= differ[n] != 0;
    return !any;
}

// -- functions of one number ------------------------------------------------------------------------------------------

template <typename R> using Number = std::remove_reference_t<decltype(R{}[0])>;
template <typename R, typename Function> inline R one_by_one(R x, Function function) {
    for (int n = 0; n < int(sizeof(R) / sizeof(x[0])); n++) x[n] = function(x[n]);
    return x;
}
template <typename R, typename = std::enable_if_t<!std::is_arithmetic<R>::value>> inline R sqrt(R x) {
    return one_by_one(x, [](auto y) { return std::sqrt(y); });
}
template <typename R> inline R exp(R x) { return registers::exponential(x); }
template <typename R> inline R tanh(R x) { return registers::hyperbolic_tangent(x); }

// ln x; what is below the smallest normal number counts as 0.
inline V<float> log(V<float> x) {
    const V<float> least = x < 0.0f ? all(NAN_OF(float)) : all(-INFINITY_OF(float));
    const V<float> found = x < 3e38f ? registers::logarithm_of_normal(x) : x + x; // infinity, and what is no number
    return x < 1.17549435e-38f ? least : found;
}
inline V<double> log(V<double> x) { return registers::logarithm(x); }
// ln(1 + x) for x > -1: that of the rounded 1 + x, and to first order what the rounding left out.
inline V<float> log1p(V<float> x) {
    const V<float> y = 1.0f + x, found = log(y);
    return (y >= 1.17549435e-38f) & (y < 3e38f) ? found + (x - (y - 1.0f)) / y : found;
}
inline V<double> log1p(V<double> x) {
    return one_by_one(x, [](double y) { return std::log1p(y); });
}
inline V<float> expm1(V<float> x) {
    V<float> p = all(1.0f / 5040);
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f}) p = multiply_add(p, x, all(c));
    return (x < 0.35f) & (x > -0.35f) ? p * x : exp(x) - 1.0f;
}
inline V<double> expm1(V<double> x) {
    return one_by_one(x, [](double y) { return std::expm1(y); });
}
// The normal distribution function, and its density.
template <typename R> inline R normal(R x) {
    R distribution, density;
    registers::normal(x, distribution, density);
    return distribution;
}
template <typename R> inline R normal_density(R x) {
    R distribution, density;
    registers::normal(x, distribution, density);
    return density;
}
inline V<float> erf(V<float> x) { // near 0 its series
    const V<float> square = x * x;
    V<float> p = all(-1.0f / 1320);
    for (float c : {1.0f / 216, -1.0f / 42, 1.0f / 10, -1.0f / 3, 1.0f}) p = multiply_add(p, square, all(c));
    return square < 0.25f ? 1.12837917f * (x * p) : 2.0f * normal(V<float>(x * 1.41421356f)) - 1.0f;
}
inline V<double> erf(V<double> x) {
    return one_by_one(x, [](double y) { return std::erf(y); });
}
#define ONE_BY_ONE(NAME)                                                                                                  \
    template <typename R> inline R NAME(R x) {                                                                           \
        return one_by_one(x, [](auto y) { return std::NAME(y); });                                                       \
    }
ONE_BY_ONE(exp2)
ONE_BY_ONE(log2)
ONE_BY_ONE(tan)
ONE_BY_ONE(atan)
ONE_BY_ONE(sinh)
ONE_BY_ONE(cosh)
ONE_BY_ONE(asinh)
ONE_BY_ONE(acosh)
ONE_BY_ONE(floor)
ONE_BY_ONE(ceil)
ONE_BY_ONE(trunc)
ONE_BY_ONE(rint)

// Sine and cosine: x less the nearest multiple of pi / 2, in three steps, then the Taylor series on [-pi / 4, pi / 4]. Far
// from 0, where these steps would lose digits, the C library's.
template <bool COSINE> inline V<float> wave(V<float> x) {
    typedef registers::I<float> I;
    const V<float> shifted = multiply_add(x, all(0.636619772f), all(12582912.0f)); // 1.5 * 2^23: rounds to the nearest integer
    const V<float> whole = shifted - 12582912.0f;
    V<float> r = multiply_add(whole, all(-1.5703125f), x);
    r = multiply_add(whole, all(-4.837512969970703125e-4f), r);
    r = multiply_add(whole, all(-7.54978995489188e-8f), r);
    const V<float> square = r * r;
    V<float> odd = all(2.75573192e-6f), even = all(2.48015873e-5f);
    for (float c : {-1.98412698e-4f, 8.33333333e-3f, -1.66666667e-1f}) odd = multiply_add(odd, square, all(c));
    for (float c : {-1.38888889e-3f, 4.16666667e-2f, -0.5f, 1.0f}) even = multiply_add(even, square, all(c));
    odd = multiply_add(odd * square, r, r);
    const I quarter = (I)shifted + (COSINE ? 1 : 0);
    const V<float> found = (quarter & 1) != 0 ? even : odd, turned = (quarter & 2) != 0 ? -found : found;
    const auto is_far = (x > 8192.0f) | (x < -8192.0f);
    if (!same(V<float>(is_far ? all(1.0f) : V<float>{}), V<float>{}))
        return is_far ? one_by_one(x, [](auto y) { return COSINE ? std::cos(y) : std::sin(y); }) : turned;
    return turned;
}
inline V<float> sin(V<float> x) { return wave<false>(x); }
inline V<float> cos(V<float> x) { return wave<true>(x); }
inline V<double> sin(V<double> x) {
    return one_by_one(x, [](double y) { return std::sin(y); });
}
inline V<double> cos(V<double> x) {
    return one_by_one(x, [](double y) { return std::cos(y); });
}
template <typename R> inline auto isfinite(R x) { return x - x == R{}; }
template <typename R> inline R larger(R a, R b) { return (a > b) | (a != a) ? a : b; } // what is no number stays none
template <typename R> inline R smaller(R a, R b) { return (a < b) | (a != a) ? a : b; }
template <typename R> inline R sign_of(R x) {
    typedef Number<R> T;
    return x > T(0) ? all(T(1)) : (x < T(0) ? all(T(-1)) : x);
}
template <typename R> inline R quotient_down(R a, R b) { return floor(R(a / b)); }
template <typename R> inline R left_over(R a, R b) { return a - b * quotient_down(a, b); }
template <typename R> inline R pow(R base, R exponent) {
    typedef Number<R> T;
    const R size = exp(R(exponent * log(R(base < T(0) ? -base : base))));
    const R half = exponent * T(0.5), of_negative = rint(half) == half ? size : -size;
    const R none = all(NAN_OF(T)), at_zero = exponent < T(0) ? all(INFINITY_OF(T)) : R{};
    const R found = base < T(0) ? (rint(exponent) == exponent ? of_negative : none) : (base == T(0) ? at_zero : size);
    return exponent == T(0) ? all(T(1)) : found;
}

} // namespace rows

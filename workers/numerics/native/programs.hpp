// What generated kernels of programs compute with: functions of one number that a compiler makes vector instructions of.
//
// float: the polynomials of functions.hpp, for numbers one by one, without branches. double is the C library's.
//
// A compiler reads this before each part of a program. Headers of processors and of the C++ library's mathematics would
// take it as long as what it then compiles, so that functions are the compiler's own.
#pragma once
#include <cstdint>
#include <limits>

#include "fused_numbers.hpp"

#define INFINITY_OF(type) std::numeric_limits<type>::infinity()
#define NAN_OF(type) std::numeric_limits<type>::quiet_NaN()
typedef long long Long;
typedef unsigned char Byte;

namespace programs {

// Bits as unsigned numbers, which wrap around where numbers are infinite or none.
inline float of_bits(std::uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
inline std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof x);
    return bits;
}

// What is below the smallest normal number comes out as 0, as subnormal numbers do elsewhere; what is no number stays none.
inline float exp(float x) {
    float y = x < -86.98f ? -86.98f : x;
    y = y > 89.0f ? 89.0f : y;
    const float shifted = multiply_add(y, 1.44269504f, 12582912.0f), whole = shifted - 12582912.0f;
    const float r = multiply_add(whole, 2.12194440e-4f, multiply_add(whole, -0.693359375f, y));
    float p = 1.0f / 5040;
    p = multiply_add(p, r, 1.0f / 720);
    p = multiply_add(p, r, 1.0f / 120);
    p = multiply_add(p, r, 1.0f / 24);
    p = multiply_add(p, r, 1.0f / 6);
    p = multiply_add(p, r, 0.5f);
    p = multiply_add(p, r, 1.0f);
    p = multiply_add(p, r, 1.0f);
    // Half of the power of two: the whole one is infinite just below the largest number.
    const float found = (p + p) * of_bits((bits_of(shifted) + 126) << 23);
    return x < -86.98f ? 0.0f : x != x ? x : found;
}

inline float log(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::int32_t exponent = std::int32_t(bits - 0x3F3504F3u) >> 23;
    const float m = of_bits(bits - (std::uint32_t(exponent) << 23)), t = (m - 1.0f) / (m + 1.0f), square = t * t;
    float p = 2.0f / 9;
    p = multiply_add(p, square, 2.0f / 7);
    p = multiply_add(p, square, 2.0f / 5);
    p = multiply_add(p, square, 2.0f / 3);
    p = multiply_add(p, square, 2.0f);
    const float found = multiply_add(float(exponent), 0.693147181f, t * p);
    const float below = x == 0.0f ? -INFINITY_OF(float) : x > 0.0f ? found : NAN_OF(float);
    return x < INFINITY_OF(float) ? below : x;
}
inline float log1p(float x) { // to first order with what rounding 1 + x left out
    const float y = 1.0f + x, lost = (x - (y - 1.0f)) / y;
    return y > 0.0f && y < INFINITY_OF(float) ? log(y) + lost : log(y);
}

inline float tanh(float x) {
    const float y = x < 0.0f ? -x : x, square = x * x;
    float p = -5.70498872745e-3f;
    p = multiply_add(p, square, 2.06390887954e-2f);
    p = multiply_add(p, square, -5.37397155531e-2f);
    p = multiply_add(p, square, 1.33314422036e-1f);
    p = multiply_add(p, square, -3.33332819422e-1f);
    const float near = multiply_add(x * square, p, x), far = 1.0f - 2.0f / (exp(2.0f * y) + 1.0f);
    return y < 0.625f ? near : x < 0.0f ? -far : far;
}

// The tail of the normal distribution as functions.hpp has it; near 0 the series of erf.
inline float erf(float x) {
    const float y = x < 0.0f ? -x : x, z = y * 1.41421356f, t = 1.0f / multiply_add(0.26f, z, 1.0f), square = x * x;
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
    const float far = 1.0f - 2.0f * exp(-square) * p;
    float near = 1.0f / 1320;
    near = multiply_add(near, -square, 1.0f / 216);
    near = multiply_add(near, -square, 1.0f / 42);
    near = multiply_add(near, -square, 1.0f / 10);
    near = multiply_add(near, -square, 1.0f / 3);
    near = multiply_add(near, -square, 1.0f);
    return y < 0.5f ? near * x * 1.12837917f : x < 0.0f ? -far : far;
}

// An index that was read from memory, kept within a tensor; one outside is noted beside the tensor's size.
inline Long bounded(Long index, Long size, Long *fault) {
    if (index >= 0 && index < size) return index;
    fault[0] = index, fault[1] = size;
    return 0;
}

inline double exp(double x) { return __builtin_exp(x); }
inline double log(double x) { return __builtin_log(x); }
inline double log1p(double x) { return __builtin_log1p(x); }
inline double tanh(double x) { return __builtin_tanh(x); }
inline double erf(double x) { return __builtin_erf(x); }

// C++'s functions of a number, or of two, by the compiler's own.
#define OF_ONE(name) \
    inline float name(float x) { return __builtin_##name##f(x); } \
    inline double name(double x) { return __builtin_##name(x); }
#define OF_TWO(name) \
    inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
    inline double name(double x, double y) { return __builtin_##name(x, y); }
OF_ONE(ceil)
OF_ONE(cos)
OF_ONE(exp2)
OF_ONE(expm1)
OF_ONE(floor)
OF_ONE(log2)
OF_ONE(rint)
OF_ONE(sin)
OF_ONE(sqrt)
OF_ONE(trunc)
OF_TWO(copysign)
OF_TWO(fmod)
OF_TWO(pow)
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }

// Of integers, which are whole and finite.
template <typename T> inline T ceil(T x) { return x; }
template <typename T> inline T floor(T x) { return x; }
template <typename T> inline T rint(T x) { return x; }
template <typename T> inline T trunc(T x) { return x; }
template <typename T> inline bool isfinite(T) { return true; }
#undef OF_ONE
#undef OF_TWO

} // namespace programs

// a * b + c, rounded once, for registers; fused_numbers.hpp has it for numbers, and says why.
#pragma once
#include <type_traits>
#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "fused_numbers.hpp"

template <typename V, typename = std::enable_if_t<!std::is_arithmetic<V>::value>> inline V multiply_add(V a, V b, V c) {
    typedef std::remove_reference_t<decltype(a[0])> T;
    constexpr bool single = sizeof(T) == sizeof(float);
    (void)single;
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64 && single) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
    if constexpr (sizeof(V) == 64 && !single) return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#endif
#if defined(__FMA__)
    if constexpr (sizeof(V) == 32 && single) return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    if constexpr (sizeof(V) == 32 && !single) return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
    if constexpr (sizeof(V) == 16 && single) return (V)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
    if constexpr (sizeof(V) == 16 && !single) return (V)_mm_fmadd_pd((__m128d)a, (__m128d)b, (__m128d)c);
#elif defined(__aarch64__)
    if constexpr (sizeof(V) == 16 && single) return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
    if constexpr (sizeof(V) == 16 && !single) return (V)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#endif
    V sum = c; // of registers that the compiler puts together
    for (int n = 0; n < int(sizeof(V) / sizeof(T)); n++) sum[n] = multiply_add(T(a[n]), T(b[n]), T(c[n]));
    return sum;
}

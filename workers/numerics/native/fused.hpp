// a * b + c, rounded once, for registers; fused_numbers.hpp has it for numbers, and says why.
#pragma once
#include <type_traits>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__FMA__) && defined(__clang__)
#include <immintrin.h>
#define FUSED(GCC, INTEL) INTEL
#elif defined(__FMA__) // immintrin.h takes GCC half a second to read. It has these calls: -1 is all places, 4 the usual rounding.
#define FUSED(GCC, INTEL) GCC
#endif

#include "fused_numbers.hpp"

template <typename V, typename = std::enable_if_t<!std::is_arithmetic<V>::value>> inline V multiply_add(V a, V b, V c) {
    typedef std::remove_reference_t<decltype(a[0])> T;
    constexpr bool single = sizeof(T) == sizeof(float);
    (void)single;
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64 && single) return (V)FUSED(__builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4), _mm512_fmadd_ps(a, b, c));
    if constexpr (sizeof(V) == 64 && !single) return (V)FUSED(__builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4), _mm512_fmadd_pd(a, b, c));
#endif
#if defined(__FMA__)
    if constexpr (sizeof(V) == 32 && single) return (V)FUSED(__builtin_ia32_vfmaddps256(a, b, c), _mm256_fmadd_ps(a, b, c));
    if constexpr (sizeof(V) == 32 && !single) return (V)FUSED(__builtin_ia32_vfmaddpd256(a, b, c), _mm256_fmadd_pd(a, b, c));
    if constexpr (sizeof(V) == 16 && single) return (V)FUSED(__builtin_ia32_vfmaddps(a, b, c), _mm_fmadd_ps(a, b, c));
    if constexpr (sizeof(V) == 16 && !single) return (V)FUSED(__builtin_ia32_vfmaddpd(a, b, c), _mm_fmadd_pd(a, b, c));
#elif defined(__aarch64__)
    if constexpr (sizeof(V) == 16 && single) return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
    if constexpr (sizeof(V) == 16 && !single) return (V)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#endif
    V sum = c; // of registers that the compiler puts together
    for (int n = 0; n < int(sizeof(V) / sizeof(T)); n++) sum[n] = multiply_add(T(a[n]), T(b[n]), T(c[n]));
    return sum;
}

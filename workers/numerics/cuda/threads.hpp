// The threads of a block: on a GPU, and, with GRAFT_EMULATED, on a processor as one after another.
//
// A kernel is written as phases, `each(count, work)`: work(i) for every i, shared out among the threads, which
// meet at the end. Within a phase no i reads what another one writes, and nothing but memory lasts from one phase
// to the next. So any order of the i gives the same bits, which the emulator shows by running them forwards,
// backwards and shuffled.
#pragma once

// Products by tensor cores, a mode that is declared (tiles.hpp). Its warps need more registers, so its blocks are smaller.
#ifndef TF32
#define TF32 0
#endif
constexpr int THREADS = TF32 ? 128 : 256;

typedef unsigned char Byte;
typedef long long Int;
typedef unsigned long long Word;

#if defined(GRAFT_EMULATED)
#include <cmath>
#include <cstddef>
#include <cstring>

#define __device__
#define __global__
#define __grid_constant__
#define __noinline__
#define ROLLED
#define __launch_bounds__(threads, blocks)

enum class Order { forwards, backwards, shuffled };
struct Emulated {
    Order order;
    int block;
    float *shared;
    Int phases, items; // so far: meetings of the threads, and work between them
};
static thread_local Emulated emulated;

template <typename Work> inline void each(int count, Work work) {
    emulated.phases++, emulated.items += count;
    switch (emulated.order) {
    case Order::forwards:
        for (int i = 0; i < count; i++) work(i);
        break;
    case Order::backwards:
        for (int i = count; i--;) work(i);
        break;
    case Order::shuffled: // two halves, turned into one another
        for (int i = count / 2; i < count; i++) work(i);
        for (int i = 0; i < count / 2; i++) work(i);
        break;
    }
}
inline int block_number() { return emulated.block; }
inline float *shared_memory() { return emulated.shared; }
inline unsigned shared_address(int entry) { return 4u * unsigned(entry); }
inline float load_shared(unsigned address) { return shared_memory()[address / 4]; }
inline int opaque(int value) { return value; }
inline float as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline int as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

#else

// A loop that is there once: compilers would have each of fifty four times, and take a minute for it.
#define ROLLED _Pragma("unroll 1")

template <typename Work> __device__ inline void each(int count, Work work) {
    ROLLED for (int i = int(threadIdx.x); i < count; i += THREADS) work(i);
    __syncthreads();
}
__device__ inline int block_number() { return int(blockIdx.x); }
__device__ inline float *shared_memory() {
    extern __shared__ float memory[];
    return memory;
}
__device__ inline unsigned shared_address(int entry) { return unsigned(__cvta_generic_to_shared(shared_memory() + entry)); }
__device__ inline float load_shared(unsigned address) {
    float value; // `volatile` and `memory`: a compiler sees no other sign that this reads what a phase before has written
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}
// The same number, which a compiler takes for another one each time: what is computed of it is computed again where it is
// needed, and takes no register in between.
__device__ inline int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
__device__ inline float as_float(int bits) { return __int_as_float(bits); }
__device__ inline int as_int(float value) { return __float_as_int(value); }
__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

#endif

// The quotient by a number that is the same for many, at a fifth of what a division costs a GPU: exact while dividend
// times divisor is below 2^32, for an array's entries while rows times columns^2 is (LARGEST_SIZE in fused/plan.py).
struct Divisor {
    int by;
    Word inverse;
    __device__ explicit Divisor(int divisor) : by(divisor), inverse(Word(0xFFFFFFFFu / unsigned(divisor)) + 1) {}
    __device__ int quotient(int i) const { return int(Word(unsigned(i)) * inverse >> 32); }
};
// work(row, column) of all rows and columns.
template <typename Work> __device__ inline void each_of(int rows, int columns, Work work) {
    const Divisor divisor(columns);
    each(rows * columns, [&](int i) {
        const int row = divisor.quotient(i);
        work(row, i - row * columns);
    });
}

// Warps: what 32 threads, called lanes here, do together without the rest of their block. Between two meetings of a warp no
// thread reads what another one of it writes, and between two of the block none what another warp writes: the emulator shows
// it by orders, as of phases. There each lane is a context of its own, which runs until its warp meets.
#pragma once
#include "threads.hpp"

constexpr int WARPS = THREADS / 32;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

struct alignas(16) Four {
    float x[4];
};

#if defined(GRAFT_EMULATED)
#include <cstdlib>
#include <ucontext.h>
#include <vector>

#define UNROLLED

struct EmulatedWarp {
    ucontext_t scheduler, lanes[32];
    std::vector<char> stacks;
    void (*run)(const void *work, int warp, int lane);
    const void *work;
    int warp, lane, ended;
    int meetings[32];       // that each lane has come to
    float given[2][32][6];  // what lanes give to the others, at even and odd meetings
};
static thread_local EmulatedWarp emulated_warp;

// Each lane's numbers, once all have come; the next meeting but one overwrites them.
typedef const float (*Given)[6];
inline Given meet(const float *own, int count) {
    EmulatedWarp &warp = emulated_warp;
    const int lane = warp.lane;
    float(*given)[6] = warp.given[warp.meetings[lane]++ & 1];
    std::memcpy(given[lane], own, sizeof(float) * size_t(count));
    swapcontext(&warp.lanes[lane], &warp.scheduler);
    return given;
}
inline void run_emulated_lane() {
    EmulatedWarp &warp = emulated_warp;
    warp.run(warp.work, warp.warp, warp.lane);
    warp.ended++;
}
// work(warp, lane) of all threads, which meet at the end; in between a warp waits for its own lanes alone.
template <typename Work> inline void each_lane(Work work) {
    each(WARPS, [&](int number) {
        constexpr size_t STACK = 1 << 16;
        EmulatedWarp &warp = emulated_warp;
        warp.stacks.resize(32 * STACK);
        warp.run = [](const void *given, int own, int lane) { (*static_cast<const Work *>(given))(own, lane); };
        warp.work = &work, warp.warp = number, warp.ended = 0;
        for (int lane = 0; lane < 32; lane++) {
            warp.meetings[lane] = 0;
            getcontext(&warp.lanes[lane]);
            warp.lanes[lane].uc_stack.ss_sp = warp.stacks.data() + size_t(lane) * STACK;
            warp.lanes[lane].uc_stack.ss_size = STACK;
            warp.lanes[lane].uc_link = &warp.scheduler;
            makecontext(&warp.lanes[lane], run_emulated_lane, 0);
        }
        while (!warp.ended) {
            for (int n = 0; n < 32; n++) {
                const Order order = emulated.order;
                warp.lane = order == Order::forwards ? n : order == Order::backwards ? 31 - n : (n + 16) % 32;
                swapcontext(&warp.scheduler, &warp.lanes[warp.lane]);
            }
            if (warp.ended % 32) std::abort(); // a lane has missed a meeting: a GPU would wait for ever
        }
    });
}
inline void meet_warp() { meet(nullptr, 0); }
inline float shuffle(float own, int lane) { return meet(&own, 1)[lane][0]; }
inline int shuffle(int own, int lane) { return as_int(shuffle(as_float(own), lane)); }
// Of a mantissa's 23; a test has none.
#ifndef ROUNDED_BITS
#define ROUNDED_BITS 13
#endif
constexpr int ROUNDED = (1 << ROUNDED_BITS) - 1;
// Rounded to 10 bits of mantissa, halves away from zero.
inline float to_tf32(float x) { return x * 0.0f + as_float((as_int(x) + (ROUNDED + 1) / 2) & ~ROUNDED); }
inline void multiply(float (&d)[4], const float (&a)[4], const float (&b)[2], const float (&c)[4]) {
    const float own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const int lane = emulated_warp.lane;
    const Given given = meet(own, 6);
    const auto seen = [](float x) { return as_float(as_int(x) & ~ROUNDED); }; // the unit ignores what was not rounded
    for (int n = 0; n < 4; n++) {
        const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
        float sum = c[n];
        for (int k = 0; k < 8; k++)
            sum += seen(given[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]) * seen(given[column * 4 + k % 4][4 + k / 4]);
        d[n] = sum;
    }
}
inline float power_of_2(float x) { return std::exp2(x); }
inline float logarithm_of_2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1.0f / x; }

#else

#define UNROLLED _Pragma("unroll")

template <typename Work> __device__ inline void each_lane(Work work) {
    work(int(threadIdx.x) / 32, int(threadIdx.x) % 32);
    __syncthreads();
}
__device__ inline void meet_warp() { __syncwarp(); }
template <typename Number> __device__ inline Number shuffle(Number own, int lane) {
    return __shfl_sync(0xFFFFFFFFu, own, lane);
}
// As cvt.rna.tf32.f32 of a factor, which takes three instructions, but that infinity becomes no number. Tensor cores do not
// see the low bits that are left: the compiler leaves them, too.
__device__ inline float to_tf32(float x) { return multiply_add(x, 0.0f, as_float(as_int(x) + 0x1000)); }
// d = a b + c by one instruction of the warp: d, c [16][8], a [16][8], b [8][8]. With g = lane / 4 and t = lane % 4 a lane
// has c[g][2t], c[g][2t + 1] and the same of row g + 8; a[g][t], a[g + 8][t], a[g][t + 4], a[g + 8][t + 4]; b[t][g],
// b[t + 4][g].
__device__ inline void multiply(float (&d)[4], const float (&a)[4], const float (&b)[2], const float (&c)[4]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(as_int(a[0])), "r"(as_int(a[1])), "r"(as_int(a[2])), "r"(as_int(a[3])), "r"(as_int(b[0])),
                   "r"(as_int(b[1])), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
// By the unit for special functions, to about 2^-22.
__device__ inline float power_of_2(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}
__device__ inline float logarithm_of_2(float x) {
    float value;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}
__device__ inline float reciprocal(float x) {
    float value;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

#endif

// Of the four lanes with the same lane / 4.
__device__ inline float sum_of_four(float x, int lane) {
    x += shuffle(x, lane ^ 1);
    return x + shuffle(x, lane ^ 2);
}
__device__ inline float largest_of_four(float x, int lane) {
    float other = shuffle(x, lane ^ 1);
    x = other > x ? other : x;
    other = shuffle(x, lane ^ 2);
    return other > x ? other : x;
}

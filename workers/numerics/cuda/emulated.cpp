// The kernel on a processor, for tests: a block after another one.
#define GRAFT_EMULATED
#ifndef WEIGHTS_IN_SHARED
#define WEIGHTS_IN_SHARED 1
#endif
#include "minimal.cu"

#include <algorithm>
#include <limits>

// `order`: in which the work of a phase is done, as Order has them. Shared memory holds no numbers before a block
// writes there, nor does scratch memory; `left` [shared_floats]: what is in it when the last block has ended.
extern "C" void emulate(const Plan *plan, Int shared_floats, int order, float *left) {
    constexpr float none = std::numeric_limits<float>::quiet_NaN();
    std::fill(plan->scratch, plan->scratch + plan->blocks * plan->scratch_floats, none);
    for (Int block = 0; block < plan->blocks; block++) {
        std::fill(left, left + shared_floats, none);
        emulated = {Order(order), int(block), left, emulated.phases, emulated.items};
        fused_minimal(*plan);
    }
}
#if TF32
// c [32][4] += a [32][4] b [32][2], each thread of a warp with its own part; and x rounded to TF32.
extern "C" void emulate_multiply(int order, const float (*a)[4], const float (*b)[2], float (*c)[4]) {
    emulated.order = Order(order);
    each_lane([&](int warp, int lane) {
        if (warp == 0) multiply(c[lane], a[lane], b[lane], c[lane]);
    });
}
extern "C" float emulate_rounding(float x) { return to_tf32(x); }
#endif
// Phases and items of all launches of this thread.
extern "C" Int phases() { return emulated.phases; }
extern "C" Int items() { return emulated.items; }
extern "C" Int plan_bytes() { return sizeof(Plan); }

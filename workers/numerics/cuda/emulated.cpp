// The kernel on a processor, for tests: a block after another one.
#define GRAFT_EMULATED
#ifndef WEIGHTS_IN_SHARED
#define WEIGHTS_IN_SHARED 1
#endif
#include "minimal.cu"

#include <algorithm>
#include <limits>

// `order`: in which the work of a phase is done, as Order has them. Shared memory holds no numbers before a block
// writes there; `left` [shared_floats]: what is in it when the last block has ended.
extern "C" void emulate(const Plan *plan, Int shared_floats, int order, float *left) {
    for (Int block = 0; block < plan->lanes; block++) {
        std::fill(left, left + shared_floats, std::numeric_limits<float>::quiet_NaN());
        emulated = {Order(order), int(block), left};
        fused_minimal(*plan);
    }
}
extern "C" Int plan_bytes() { return sizeof(Plan); }

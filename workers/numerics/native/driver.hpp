// The lanes of a plan one after another, for all models that have a plan.
#pragma once
#include <cstdint>
#include <exception>

#include "memory.hpp"

namespace layered {

// Computes outputs where the plan has room for them, and else gradients, by what `make` returns; 1 if memory ran out.
template <typename Plan, typename Make> int each_lane(const Plan &plan, Make make) try {
    const registers::FlushToZero flushed;
    auto model = make();
    for (int64_t lane = 0; lane < plan.lanes; lane++)
        if (plan.outputs_values)
            model.evaluate(lane);
        else
            model.gradient(lane);
    return 0;
} catch (const std::exception &) {
    return 1;
}

} // namespace layered

// The step of linearised attention in float32: 0, or 1 if memory ran out.
#include "linearised.hpp"

extern "C" int linearised_float32(const LinearisedPlan *plan) {
    return layered::each_lane(*plan, [&] { return layered::Linearised<float>(*plan); });
}

// The step of linearised attention in float64: 0, or 1 if memory ran out.
#include "linearised.hpp"

extern "C" int linearised_float64(const LinearisedPlan *plan) {
    return layered::each_lane(*plan, [&] { return layered::Linearised<double>(*plan); });
}

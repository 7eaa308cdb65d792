// The step of layered transformers in float32: 0, or 1 if memory ran out.
#include "layered.hpp"

extern "C" int layered_float32(const Plan *plan) { return layered::all_lanes<float>(*plan); }

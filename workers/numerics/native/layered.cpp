// The layered transformers' step in float32. Each precision is compiled by itself, side by side.
#include "layered.hpp"

// Returns 0, or 1 if memory ran out.
extern "C" int layered_float32(const Plan *plan) { return layered::all_lanes<float>(*plan); }
extern "C" int layered_plan_bytes() { return sizeof(Plan); }

// The steps of layered transformers and attention pooling in float32. Each precision is compiled by itself, side by side.
#include "layered.hpp"
#include "linearised.hpp"
#include "pooling.hpp"

// Each returns 0, or 1 if memory ran out.
extern "C" int layered_float32(const Plan *plan) { return layered::all_lanes<float>(*plan); }
extern "C" int pooling_float32(const PoolingPlan *plan) { return layered::pool_all_lanes<float>(*plan); }
extern "C" int linearised_float32(const LinearisedPlan *plan) { return layered::linearised_all_lanes<float>(*plan); }
extern "C" int layered_plan_bytes() { return sizeof(Plan); }

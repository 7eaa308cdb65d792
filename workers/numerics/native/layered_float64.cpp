// The steps of layered.cpp in float64, for tests.
#include "layered.hpp"
#include "linearised.hpp"
#include "pooling.hpp"

// Each returns 0, or 1 if memory ran out.
extern "C" int layered_float64(const Plan *plan) { return layered::all_lanes<double>(*plan); }
extern "C" int pooling_float64(const PoolingPlan *plan) { return layered::pool_all_lanes<double>(*plan); }
extern "C" int linearised_float64(const LinearisedPlan *plan) { return layered::linearised_all_lanes<double>(*plan); }

// The step of attention pooling in float64: 0, or 1 if memory ran out.
#include "pooling.hpp"

extern "C" int pooling_float64(const PoolingPlan *plan) { return layered::pool_all_lanes<double>(*plan); }

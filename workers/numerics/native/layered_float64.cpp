// The layered transformers' step in float64, for tests.
#include "layered.hpp"

// Returns 0, or 1 if memory ran out.
extern "C" int layered_float64(const Plan *plan) { return layered::all_lanes<double>(*plan); }

// The step of layered transformers in float64: 0, or 1 if memory ran out.
#include "layered.hpp"

extern "C" int layered_float64(const Plan *plan) { return layered::all_lanes<double>(*plan); }

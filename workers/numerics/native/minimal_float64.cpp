// The minimal transformer's step and its outputs in float64.
#include "minimal.hpp"

GRAFT_MINIMAL(minimal_float64, double)
GRAFT_MINIMAL_OUTPUTS(minimal_outputs_float64, double)

// The minimal transformer's step and its outputs in float32.
#include "minimal.hpp"

GRAFT_MINIMAL(minimal_float32, float)
GRAFT_MINIMAL_OUTPUTS(minimal_outputs_float32, float)

"""Training: packs of tiny transformers, their plug-in families, and the pools that run packs on devices.

This package imports and trains with torch and numpy alone.
"""

import os

# Left to itself, MKL rounds a matrix product by where in memory the matrices lie, so that a lane's bits would depend on
# its place in the pack (measured: 28 of 432 small products). Read at MKL's first call; what a person has set stays.
os.environ.setdefault("MKL_CBWR", "AUTO")

"""The version of the numerics: it decides a trial's bits with configuration, seed and processor."""

from __future__ import annotations

NUMERICS = 14
"""Counted up with every change that may move a bit of a trial: an order of additions, a precision,
an initialisation. Stored with each study; only equal numbers promise equal bits.

1  Graft 0.1.0
2  second moments and averages in float64, subnormal numbers are zero, compiled steps (transformers)
3  compiled evaluation; compiled steps fuse products and sums where they say so, with any compiler
4  compiled updates of Muon
5  compiled steps compute the first layer's queries, keys and values once per distinct row
6  prompts of linear regression are drawn in one pass, labels summed from first input to last;
   compiled steps of linearised attention add up prompts side by side, and take parts as a whole
7  the default of BEMA's eta is 0.6, before 0.2, which studies of earlier versions keep
8  compiled steps compute activations by functions that are generated from them
9  compiled steps train models whose scorer weighs products of features (cosformer, spline_kernel)
10 entmax with alpha = 2 (sparsemax) and, in compiled steps, 1.5 raises to whole powers by products
11 compiled steps train linear attention that is not centred
12 entmax with alpha > 2 sums to 1 in float32; on short sequences compiled steps give each head of
   `mixed` its own alpha; what takes a number out of a knob has no compiled step; what is frozen does
   not decay; temperatures are estimated without padding, and linearised attention's given
   temperatures are not estimated
13 entmax computes from alpha 1.5 on with the threshold tau, below with one logarithm for any alpha
14 with `training.autocast`, norms' roots are rounded from float32
"""

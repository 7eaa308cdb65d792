"""The version of the numerics: what decides a trial's bits beside its configuration, its seed and the processor."""

from __future__ import annotations

NUMERICS = 11
"""Counted up with every change that may move a bit of what a trial computes: an order of additions, a precision, an
initialisation. Stored with each study; bits are promised between equal numbers alone.

1  Graft 0.1.0
2  second moments and averages in float64, subnormal numbers are zero, compiled steps for transformers
3  compiled evaluation; compiled steps round products and sums together where they say so, whatever compiles them
4  compiled updates of Muon
5  compiled steps work on the first layer's queries, keys and values once for each distinct row of a batch
6  prompts of linear regression are drawn in one pass, their labels summed from the first input to the last; compiled
   steps of linearised attention add up several prompts side by side, and take a batch in parts as a whole
7  the default of BEMA's eta is 0.6, before 0.2, which studies of earlier versions keep
8  compiled steps compute activations by functions that are generated from them
9  compiled steps train models whose scorer weighs products of features (cosformer, spline_kernel)
10 entmax with alpha = 2 (sparsemax) and, in compiled steps, 1.5 raises to whole powers by products
11 compiled steps train linear attention that is not centred
"""

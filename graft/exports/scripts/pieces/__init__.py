"""What scripts are put together from: plain PyTorch and numpy, written from the documentation, with no import of ours.

A script gets the functions, classes and constants that its trial needs, so every name is the only one of its kind in
this folder. The class of a plug-in is its name and its family's: `ssa` of scorers is `SsaScorer`; its fields are those
of the configuration. That nothing here is shared with `workers` is the point: a script is an independent check of it.

Legend: N sequences, s positions, d width, h heads, q queries, k keys, c channels of a head, v tokens.
"""

"""The networks that are trained: models with their scorers, activations and positions.

scorers/, activations/, positions/   parts of models, one plug-in a file
models/                              models, which need the parts above
gradients/                           native gradients of models
diagnostics/                         measures of attention, reported at each validation
"""

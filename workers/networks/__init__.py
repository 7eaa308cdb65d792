"""What is trained: models with their scorers, activations and positions, and what can be read off a trained one.

scorers/, activations/, positions/   parts of models, one plug-in a file
models/                              models, which need the parts above
gradients/                           native gradients of models
diagnostics/                         what attention does, reported at each validation
"""

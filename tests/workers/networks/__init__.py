"""Tests of models, scorers, activations and what is measured in them."""

"""Notebooks that are run as they stand, and the program that runs them."""

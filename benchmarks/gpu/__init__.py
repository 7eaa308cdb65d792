"""A GPU's first day: what is right on it, how fast it is beside its peers, and whether the program works there."""

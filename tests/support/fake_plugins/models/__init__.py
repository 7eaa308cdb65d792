"""The made-up models of the language's tests."""


class Model:
    """A model that is configuration and nothing else."""

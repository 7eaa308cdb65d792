"""The made-up scorers of the language's tests."""


class Scorer:
    """A scorer that is configuration and nothing else."""

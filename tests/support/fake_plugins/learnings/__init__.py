"""The made-up ways of learning of the language's tests."""


class Learning:
    """A way of learning that is configuration and nothing else."""

"""The made-up stoppings of the language's tests."""


class Stopping:
    """A stopping that is configuration and nothing else."""

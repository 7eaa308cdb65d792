"""The made-up optimizers of the language's tests."""


class Optimizer:
    """An optimizer that is configuration and nothing else."""

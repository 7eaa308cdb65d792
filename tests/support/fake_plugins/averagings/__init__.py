"""The made-up averagings of the language's tests."""


class Averaging:
    """An averaging that is configuration and nothing else."""

    VARIANTS = ("raw", "ema", "bema")

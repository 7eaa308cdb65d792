"""The made-up samplers of the language's tests."""


class Sampler:
    """A sampler that is configuration and nothing else."""

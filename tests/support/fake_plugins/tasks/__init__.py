"""The made-up tasks of the language's tests."""


class Task:
    """A task that is configuration and nothing else."""

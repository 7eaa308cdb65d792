"""The machine that a command runs on: its devices, and the findings of `search doctor`."""

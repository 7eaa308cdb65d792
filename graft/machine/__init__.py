"""The machine that a command runs on: its devices, and what `search doctor` finds there."""

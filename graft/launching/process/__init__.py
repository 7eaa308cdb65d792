"""The process of a launch: its interruption, its observation, its limits and its files."""

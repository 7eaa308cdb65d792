"""A public table of trials, drawn at random over many tasks."""

"""Changes of a study that was launched: its space, trials by hand, name, notes, deletion."""

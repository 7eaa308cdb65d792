"""A study that was launched is changed: its space, trials by hand, its name and its notes; or it is deleted."""

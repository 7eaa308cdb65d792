"""The same search done by Graft, by Ray Tune with Optuna, and by a plain loop in one process per core."""

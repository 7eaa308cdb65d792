"""A stored trial is trained again: to compare its metrics, to write its weights, to refit its scorer."""

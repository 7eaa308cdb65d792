"""Trains a stored trial again, to compare its metrics, write its weights or refit its scorer."""

"""The arms of an experiment: which trials stand for each, and the table that compares them with the baseline."""

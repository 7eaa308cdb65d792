"""The arms of an experiment: the trials that stand for each, and the table that compares them."""

"""Stored studies as Optuna sees them, read-only, for its figures, importances and dashboard.

ranges.py     a space as Optuna's distributions
trials.py     a stored trial as one of Optuna's
storage.py    Optuna's storage over the studies of a database
journal.py    a study written as a file that Optuna can go on with
dashboard.py  optuna-dashboard over such a storage
"""

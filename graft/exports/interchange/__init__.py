"""Stored studies for other programs: Optuna and its dashboard, loggers of experiments, Prometheus.

optuna_studies.py   a database's studies as Optuna's read-only storage reads them
logged_trials.py    chosen trials with their metrics, as a logger has them
tensorboard.py, trackio.py, mlflow.py   one logger each
prometheus.py       a database in Prometheus' text format
extras.py           packages that only some need
"""

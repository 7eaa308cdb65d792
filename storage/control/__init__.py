"""Writing a study that this process controls: one transaction for each step of its controller.

controlled_study.py   the transactions; queries.py has those that only read
session.py            makes them again when a server was away
rows.py, checkpointing.py, leases.py   their statements over trials, checkpoints and workers
editing.py            changes of a study that does not run
history.py            the reports that stay
"""

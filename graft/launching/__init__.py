"""Launching: where a study runs, which study a launch takes control of, and the run itself.

run.py       the run of a stored study
enrolling.py a space becomes a stored study, or the one that is there; control of it
placement.py where a study runs; employing.py: the pool or the cluster that trains it
planning/   before a launch: its draws and cost, what earlier studies teach it
editing/    changes of a study that was launched
process/    the process of a launch: its interruption, observation and crashes
"""

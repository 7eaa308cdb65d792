"""Launching: where a study runs, which study a launch takes control of, and the run itself.

planning/   before a launch: its draws and cost, what earlier studies teach it
editing/    changes of a study that was launched
process/    the process of a launch: its interruption, observation and crashes
"""

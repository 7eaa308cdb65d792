"""Launching: where a study runs, which study a launch takes control of, and the run itself.

planning/   before a launch: what it would draw and take, what earlier studies teach it
editing/    a study that was launched is changed
process/    the process that launches: how it is interrupted and watched, how it crashes
"""

"""Graft's tasks, models, optimizers and averages a second time, in plain torch and numpy, from their formulas.

They share no code with what they check: nothing of Graft is imported here, as a test says. A plug-in's class is found
by its name (`parts.build`): `SetComplementTask` is the task set_complement.
"""

"""The contents of a database for people and programs: studies, their status, trials, exports."""

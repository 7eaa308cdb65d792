"""What a database holds, read for people and for other programs: studies, their status, trials, exports."""

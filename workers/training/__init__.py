"""Training: a trial's recipe and step, with optimizers, schedules, averaging and learning."""

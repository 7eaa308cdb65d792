"""How models are trained: a trial's recipe and optimizer step, with optimizers, schedules, averaging and learning."""

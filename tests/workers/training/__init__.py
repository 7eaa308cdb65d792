"""Tests of optimizers, schedules and updates."""

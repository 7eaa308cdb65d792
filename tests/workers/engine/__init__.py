"""Tests of packs, their steps and their checkpoints."""

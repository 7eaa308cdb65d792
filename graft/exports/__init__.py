"""Trials as other programs have them: scripts, Hugging Face models, records of other tools."""

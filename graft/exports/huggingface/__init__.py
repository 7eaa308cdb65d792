"""Hugging Face: trained trials as models of its library, and language models scored by lm-evaluation-harness."""

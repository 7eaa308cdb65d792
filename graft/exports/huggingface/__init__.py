"""Hugging Face: trained trials as its models, and language models scored by its harness."""

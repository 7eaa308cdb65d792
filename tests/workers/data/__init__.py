"""Tests of tasks, corpora and tokenizers."""

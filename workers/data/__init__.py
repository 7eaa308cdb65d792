"""The data that models are trained on: tasks, and the corpora and tokenizers of language tasks."""

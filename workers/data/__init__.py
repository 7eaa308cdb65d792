"""On what models are trained: tasks, and the corpora and tokenizers that language tasks read."""

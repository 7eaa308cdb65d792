"""The atlas of inductive biases: each packaged task with the same arms, kept as Parquet, and the page made from it."""

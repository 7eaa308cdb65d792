"""The report of a compatibility matrix, in every format."""

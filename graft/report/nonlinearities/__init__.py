"""The report of learned non-linearities in every format, and its parts in other reports."""

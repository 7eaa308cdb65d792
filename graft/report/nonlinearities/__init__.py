"""The report of learned non-linearities, in every format, and what of it stands in other reports."""

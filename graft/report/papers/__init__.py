"""Tables and figures of the five papers, and the pages of those that no study's report has."""

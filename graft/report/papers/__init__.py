"""Tables and figures of the five papers: which are made here, and the pages of those that no study's report has."""

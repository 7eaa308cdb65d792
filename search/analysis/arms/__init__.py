"""Statistics of arms over seeds: intervals, tests, aggregates and the table that compares arms with a baseline."""

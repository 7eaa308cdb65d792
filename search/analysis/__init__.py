"""The analysis of a study: summaries, intervals, matrices of transfer, priors for later studies."""

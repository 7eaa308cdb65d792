"""What a study says once it has run: summaries, intervals, compatibility matrices, and priors for later studies."""

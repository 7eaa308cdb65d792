"""The algorithms of CLRS-Text, traced step by step, and their text."""

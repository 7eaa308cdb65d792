"""The algorithms of CLRS-Text, traced: what they do, step by step, and how that is written as text."""

"""The analysis of a transfer: its second stage, the compatibility matrix, and similar sources."""

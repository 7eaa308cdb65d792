"""Graft as a library: the functions that the commands and a notebook share."""

"""Figures that a reader of a page can zoom and read off, and the scripts that draw them."""

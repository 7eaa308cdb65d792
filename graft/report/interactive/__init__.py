"""Figures that a reader of a page can zoom and read off: their charts, and the scripts that draw these in a file."""

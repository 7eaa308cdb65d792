"""The commands of the program, a file for each group: options in, text out. `graft` does the work."""

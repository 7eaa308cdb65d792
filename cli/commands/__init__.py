"""The commands of the program, one file for each group of them: options in, text out; graft does the work."""

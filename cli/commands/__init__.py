"""The commands of the program, a file for each group of them: options in, text out."""

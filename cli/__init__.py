"""The program `search` on a terminal: commands, shared options, tables and the live display."""

"""The program `search` on a terminal: commands, the options that they share, tables and the live display."""

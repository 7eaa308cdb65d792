"""The machine that trains: its devices, memory and processes, and their names."""

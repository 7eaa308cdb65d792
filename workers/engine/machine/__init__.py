"""The machine that trains: its devices, GPUs, memory and processes, and how they are named."""

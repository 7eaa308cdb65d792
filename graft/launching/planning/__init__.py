"""What can be said before a launch: its draws, its cost, its mistakes, and what earlier studies teach it."""

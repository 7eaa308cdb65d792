"""Before a launch: what it would draw, what it would take, whether it can work, and what earlier studies teach it."""

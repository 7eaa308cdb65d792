"""Before a launch: the draws of a space, its cost, its mistakes, and lessons of earlier studies."""

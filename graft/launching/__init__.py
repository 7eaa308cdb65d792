"""What a launch needs: where it runs, what it would take, what earlier studies teach it, and the run itself."""

"""The addresses of the server, a file for each kind of thing."""

"""The tools by which programs work with a database: the same over stdio and HTTP, by the Model Context Protocol (MCP).

offered.py   the tools: what each of them does
arguments.py what they take
answers.py   answers that fit into a program's context: some rows, shortened texts, a cursor
server.py    the server of the protocol, and its two transports
"""

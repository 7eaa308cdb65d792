"""The tools by which programs work with a database: the same over stdio and HTTP, by the Model Context Protocol (MCP).

tool.py      a tool: a function, and what its docstring and its signature say of it
offered.py   the tools that there are
answers.py   answers that fit into a program's context: some rows, shortened texts, a cursor
server.py    the server of the protocol, and its two transports
"""

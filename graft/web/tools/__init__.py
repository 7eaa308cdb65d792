"""The tools by which programs work with a database, over stdio and HTTP (Model Context Protocol).

tool.py      a tool: a function, and what its docstring and its signature say of it
offered.py   the tools that there are
answers.py   answers that fit into a program's context: some rows, shortened texts, a cursor
parts.py     texts in parts, all of one state of the text
server.py    the server of the protocol, and its two transports
"""

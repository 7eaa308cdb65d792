"""What is refused, and how.

guard.py     before a route is reached: foreign hosts and origins, large or slow bodies, too many requests, no token
access.py    tokens and roles
refusals.py  one line for the client, one JSON line for the log
"""

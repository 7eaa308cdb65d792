"""The refusals of requests.

guard.py     before a route: foreign hosts and origins, large or slow bodies, rates, no token
access.py    tokens and roles
refusals.py  one line for the client, one JSON line for the log
"""

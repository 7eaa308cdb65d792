"""The service: one process that runs the studies in a database's queue, several at a time.

submitting.py   puts a space into the queue
"""

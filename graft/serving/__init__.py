"""The service: one process that runs the studies in the queue of a database, several at a time over the same workers.

submitting.py   a space is put into the queue
"""

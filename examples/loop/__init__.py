"""A program that edits a small transformer, trains each edit in packs, and keeps what a claim confirms.

rounds.py     a round: edits become arms of one study, and its claims decide which is kept
proposals.py  where edits come from: chance, a command such as a language model, or edits that do nothing
measure.py    how often edits that do nothing are kept, and edits of a known effect are found
start.yaml    the space that all rounds share
"""

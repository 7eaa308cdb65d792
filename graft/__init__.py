"""Graft as a library: what the commands do and a notebook can do too.

    launching    a space that is read and checked, what it would take, what earlier studies teach it, and its run
    stored       studies, their status, their trials, as frames
    retraining   replays of stored trials, their weights
    report       the pages and figures of studies

Importing it raises ImportError if a module of yours is found in place of one of Graft's packages.
"""

from __future__ import annotations

from graft.shadowing import check_packages

check_packages()

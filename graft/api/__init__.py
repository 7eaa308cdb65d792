"""`import graft`: spaces, studies and plug-ins for a notebook or a script.

    space.py      a space from a file, a text or a dictionary, changed by `set`
    plugins.py    plug-ins from source text, or from a notebook's cell
    running.py    trains a study, with its progress shown, until it is finished or interrupted
    base.py       the interface of a stored study and of one of a server: status, frames, trials
    study.py      a stored study: trials trained again, their weights, reports, more training
    trials.py     one trial
    database.py   the studies of a database
    remote.py     the studies of a server, read over HTTP
    display.py    their display in a notebook

The work is done in the other folders of `graft`, which the commands use, too.
"""

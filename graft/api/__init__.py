"""`import graft`: spaces, studies and plug-ins for a notebook or a script.

    space.py      a space from a file, a text or a dictionary, changed by `set`
    plugins.py    plug-ins from source text, or from a notebook's cell
    running.py    a study is trained, with its progress shown, until it is finished or interrupted
    base.py       what a stored study and one of a server have in common: status, frames, trials
    study.py      a stored study: trials trained again, their weights, reports, and how it goes on
    trials.py     one trial
    database.py   the studies of a database
    remote.py     the studies of a server, read over HTTP
    display.py    how these look in a notebook

What is done stands in the other folders of `graft`, where the commands have it from, too.
"""

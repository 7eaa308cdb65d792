"""Studies over HTTP: what `search dashboard` serves, for programs and for browsers.

app.py          the application: routes behind the guard
security/       what is refused before a route is reached, tokens and roles, and how a refusal is said
models.py       the answers, typed
settings.py     for whom, and how much, a server answers
callers.py      who asks: what they may change, and what is asked of the queue for them
reading.py      a reader of the database for each request
submissions.py  a space that comes over HTTP: what it may name, and how much it may ask for
checking.py     that is looked at in processes of its own, which are forked from what forks.py has made ready
events.py       what changes in a study, from a cursor on
charts/         what is drawn of studies, as declarations for static/charts.js
rendering.py    pages from their templates in pages/, with what lies in static/ (static/vendored: the work of others)
routes/         the addresses, a file for each kind of thing
server.py       the process that listens

FastAPI and uvicorn come with the extra `serve`; nothing outside this folder imports them. No plug-in from outside is
run to show a study; to check a submission those are that `--allow-plugins` names, in
a process that is not this one.
"""

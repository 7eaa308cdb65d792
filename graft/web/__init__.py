"""Studies over HTTP: what `search dashboard` serves, for programs and for browsers.

app.py          the application: routes behind the guard
security/       the guard before the routes, tokens and roles, and how a refusal is said
models.py       the answers, typed
settings.py     for whom, and how much, a server answers
callers.py      who asks: what they may change, and what is asked of the queue for them
reading.py      a reader of the database for each request
submissions.py  a space that comes over HTTP: what it may name, and how much it may ask for
checking.py     the check of it in processes that are forked from what forks.py has made ready
events.py       what changes in a study, from a cursor on
charts/         what is drawn of studies, as declarations for static/charts.js
rendering.py    pages from their templates in pages/, with static/ (its vendored/: others' work)
routes/         the addresses, a file for each kind of thing
server.py       the process that listens

FastAPI and uvicorn come with the extra `serve`; nothing outside this folder imports them. No
plug-in from outside is run to show a study; the check of a submission runs those that
`--allow-plugins` names, in another process.
"""

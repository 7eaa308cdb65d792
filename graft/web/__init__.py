"""Studies over HTTP: what `search dashboard` serves, for programs and for browsers.

app.py          the application: routes behind the guard
guard.py        what is refused before a route is reached: foreign hosts and origins, large or slow bodies, too many
                requests, requests without a token
access.py       tokens and roles
refusals.py     refusals: one line for the client, one JSON line for the log
conditions.py   conditions and orders of trials in which nothing but a comparison can be written
models.py       the answers, typed
reading.py      a reader of the database for each request
submissions.py  a space that comes over HTTP, of which nothing is run and no file is opened
events.py       what changes in a study, from a cursor on
sampling.py     what pages show of studies of any size
ranges.py       the ranges of values that a page's address has
study_charts.py the charts of a study's page
drawing/        charts as <svg>, in the colours of the style sheet
rendering.py    pages from their templates in pages/, with what lies in static/ (static/vendored: the work of others)
routes/         the addresses, a file for each kind of thing
server.py       the process that listens

FastAPI and uvicorn come with the extra `serve`; nothing outside this folder imports them. No plug-in from outside is
run to show a study; to check a submission those are that `--allow-plugins` names.
"""

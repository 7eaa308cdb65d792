"""`python -m graft_search`: the program `search`."""

from __future__ import annotations

from graft_search import main

main()

"""`python -m graft`: the program `search`."""

from __future__ import annotations

import runpy

# By its name: nothing below the commands imports them.
runpy.run_module("graft_search", run_name="__main__")

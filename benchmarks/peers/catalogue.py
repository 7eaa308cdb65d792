"""The problems that the peers know; another one is a class in a module of its own, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.add_mod import AddMod
from benchmarks.peers.problem import Problem
from benchmarks.peers.set_complement import SetComplement

PROBLEMS: Mapping[str, Problem] = {"set_complement": SetComplement(), "add_mod": AddMod()}

"""The native steps compiled while Graft is built or installed, so that a first launch finds them."""

from __future__ import annotations

import os
import sys
from subprocess import CalledProcessError
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "GRAFT_COMPILE"
CHOICES = ("here", "all", "none")


class CompileAhead(BuildHookInterface[Any]):
    """Compiles libraries into the package's folder `prebuilt`, which the wheel then carries.

    `$GRAFT_COMPILE` is `here` (for processors like this one; also if it is not set), `all` (for each kind of processor
    that there is a compiler for, and the generated functions of scorers and activations, too, if torch is installed
    where the wheel is built) or `none`. A failure is one line and no error: without libraries, the first launch
    compiles what it needs.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what was made to the wheel; an editable install uses it where it is."""
        choice = os.environ.get(VARIABLE) or CHOICES[0]
        if choice not in CHOICES:
            sys.exit(f"{VARIABLE} is {choice!r}; it must be one of {', '.join(CHOICES)}")
        if choice == "none" or sys.platform != "linux":
            return
        sys.path.insert(0, self.root)
        from workers.numerics.native import building, prebuilt  # all that can be imported without torch

        if not building.find_compiler():
            self.app.display_info("there is no C++ compiler: no steps are compiled ahead")
            return
        units, levels = building.packaged_units(), [*prebuilt.levels_here()]
        if choice == "all":
            levels = [level.name for group in prebuilt.LEVELS.values() for level in group]
            try:
                from workers.engine.compile_ahead import units as all_units
            except ImportError as error:
                self.app.display_info(f"generated functions are not compiled ahead: {error}")
            else:
                units = all_units()
        try:
            made = prebuilt.build(units, *levels)
        except (OSError, CalledProcessError) as error:
            self.app.display_warning(f"no steps are compiled ahead: {getattr(error, 'stderr', None) or error}")
        else:
            build_data["artifacts"] += [f"/{path.relative_to(self.root).as_posix()}" for path in made]

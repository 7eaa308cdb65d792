"""The loop from the command line: python -m examples.loop --rounds 10 --database loop.db.

    python -m examples.loop --propose "python my_model.py"    edits of a command instead of chance

Run it again with another database; a round is a study, so that `search report claim loop-3` and all other commands
work on it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
import warnings
from random import Random

from examples.loop.proposals import ByChance, ByCommand, start_recipe
from examples.loop.rounds import Loop, Plan
from graft import GraftError


def main() -> None:
    """Run rounds, a line for each edit, and say what they have shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default="loop.db")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--edits", type=int, default=8, help="of a round")
    parser.add_argument("--seeds", type=int, default=16, help="of each edit")
    parser.add_argument("--difference", type=float, default=0.05, help="the smallest gain of interest")
    parser.add_argument("--propose", help="a command that reads the history as JSON and answers an edit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # a space of many arms warns for each of them
    propose = (
        ByCommand(command=shlex.split(options.propose)) if options.propose else ByChance(random=Random(options.seed))
    )
    plan = Plan(edits=options.edits, seeds=options.seeds, difference=options.difference)
    start = start_recipe()
    loop = Loop(database=options.database, plan=plan, recipe=start, seed=1_000 * options.seed)
    began = time.monotonic()
    try:
        for _ in range(options.rounds):
            for claim in loop.round(propose):
                said = f"{claim.verdict}{', kept' if claim.kept else ''}: {claim.edit.why}"
                print(f"{claim.round}  {said}; gain {claim.gain:.3g} ({claim.low:.3g} to {claim.high:.3g})", flush=True)
        minutes = (time.monotonic() - began) / 60
        print(f"{len(loop.outcomes)} edits in {minutes:.1f} minutes", *loop.learned(), loop.confirm(start), sep="\n")
    except (GraftError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

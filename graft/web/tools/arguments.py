"""The arguments of the tools that programs have, as JSON Schemas follow from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from graft.web.charts.conditions import LONGEST
from graft.web.tools.answers import LARGEST
from spaces.bounds import MOST_TRIALS, PRIORITIES


class Arguments(BaseModel, extra="forbid"):
    """The arguments of a tool, of which no other is taken."""


Study = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Name of a study.")]
Space = Annotated[
    str, Field(max_length=200_000, description="YAML text of a space, or the name of a packaged one: quick/every.")
]
Cursor = Annotated[int, Field(ge=0, le=1_000_000_000, description="`next` of the answer before.")]


class List(Arguments):
    """The kind of thing to list, and from where on."""

    what: Literal["studies", "queue", "spaces", "plugins"] = "studies"
    family: str | None = Field(None, max_length=40, description="Of plug-ins: task, model, scorer ... All: leave out.")
    cursor: Cursor = 0


class Describe(Arguments):
    """A space, a study or a plug-in to describe."""

    name: str = Field(max_length=200, description="space/quick/every, scorer/ssa, task/every, study/NAME ...")
    cursor: Cursor = 0


class Check(Arguments):
    """A space to check."""

    space: Space


class Advise(Check):
    """A space with a claim."""

    pilot: int | None = Field(None, ge=3, le=100, description="Queue a study of so many other seeds, to advise by.")


class Submit(Check):
    """A space to train."""

    study: Study | None = Field(None, description="Its name, in place of the space's.")
    priority: int = Field(0, ge=PRIORITIES[0], le=PRIORITIES[-1])


class OfStudy(Arguments):
    """A study."""

    study: Study


class Watch(OfStudy):
    """A study to wait for."""

    seconds: float = Field(20.0, ge=0, le=50, description="Wait so long at most for its end.")


class Query(OfStudy):
    """The trials to list: a condition, an order, and how many."""

    where: str | None = Field(None, max_length=LONGEST, description="optimizer.learning_rate > 1e-3 AND state = 'x'")
    sort: str | None = Field(None, max_length=LONGEST, description="steps DESC; objective: best first.")
    limit: int = Field(10, ge=1, le=200)
    cursor: Cursor = 0


class Compare(Arguments):
    """Two arms."""

    one: str = Field(max_length=250, description="STUDY:ARM")
    other: str = Field(max_length=250, description="STUDY:ARM, the one that it is compared with.")


class Show(OfStudy):
    """A trial."""

    number: int = Field(ge=0, lt=MOST_TRIALS)


class Export(OfStudy):
    """A table or a text of a study, and the part of it to give."""

    what: Literal["trials", "metrics", "space", "claim"] = "trials"
    cursor: Cursor = 0
    bytes: int = Field(LARGEST // 2, ge=1, le=100_000, description="Of `text`, about.")

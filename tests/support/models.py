"""A task whose model sees both sides."""

from __future__ import annotations

from workers.data.tasks.set_complement import SetComplement


class BothSides(SetComplement):
    """A task over tokens whose inputs do not tell the answers, for tests of models that see both sides."""

    causal = False  # pyright: ignore[reportAssignmentType]


BOTH_SIDES = BothSides(length=4, vocabulary=7)

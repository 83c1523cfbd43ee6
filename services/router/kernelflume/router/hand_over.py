"""How a choice moves from one weight node to another between two tokens (ADR 18). Pure.

One of its runs is the one whose tokens count. While it moves there is a second: the source, which stands
still and can go on, until the target has told a token.
"""

from __future__ import annotations

from enum import StrEnum

from kernelflume.core.errors import LifecycleError


class MovePhase(StrEnum):
    """How far a choice has moved."""

    SETTLED = "settled"
    """One run, which nobody asked to stand still."""
    ASKED = "asked"
    """One run, which is to stand still."""
    MOVING = "moving"
    """The source stands still, the target has not told a token."""
    ALONE = "alone"
    """The target has not told a token, and the source is lost."""


class MoveNews(StrEnum):
    """What can happen."""

    ORDERED = "ordered"
    """Somebody wants the choice elsewhere."""
    HELD = "held"
    """Its run stands still, and a target was found."""
    TARGET_TOLD = "target_told"
    TARGET_ENDED = "target_ended"
    """Without a token, for whatever reason."""
    SOURCE_ENDED = "source_ended"
    """While it stood still."""


class MoveAct(StrEnum):
    """What is to be done then."""

    NOTHING = "nothing"
    ASK = "ask"
    """Tell the weight node to let the run stand still."""
    SUBMIT = "submit"
    """Begin a run at the target."""
    RELEASE = "release"
    """End the source: its blocks have another holder."""
    GO_ON = "go_on"
    """Let the source go on: it is the run whose tokens count again."""
    FAIL = "fail"
    """Neither run is left: continue from the tokens, as after any loss."""


TRANSITIONS: dict[tuple[MovePhase, MoveNews], tuple[MovePhase, MoveAct]] = {
    (MovePhase.SETTLED, MoveNews.ORDERED): (MovePhase.ASKED, MoveAct.ASK),
    (MovePhase.ASKED, MoveNews.ORDERED): (MovePhase.ASKED, MoveAct.NOTHING),
    (MovePhase.MOVING, MoveNews.ORDERED): (MovePhase.MOVING, MoveAct.NOTHING),
    (MovePhase.ALONE, MoveNews.ORDERED): (MovePhase.ALONE, MoveAct.NOTHING),
    # A run may be submitted with the order to stand still after its first token.
    (MovePhase.SETTLED, MoveNews.HELD): (MovePhase.MOVING, MoveAct.SUBMIT),
    (MovePhase.ASKED, MoveNews.HELD): (MovePhase.MOVING, MoveAct.SUBMIT),
    (MovePhase.MOVING, MoveNews.TARGET_TOLD): (MovePhase.SETTLED, MoveAct.RELEASE),
    (MovePhase.ALONE, MoveNews.TARGET_TOLD): (MovePhase.SETTLED, MoveAct.NOTHING),
    (MovePhase.MOVING, MoveNews.TARGET_ENDED): (MovePhase.SETTLED, MoveAct.GO_ON),
    (MovePhase.ALONE, MoveNews.TARGET_ENDED): (MovePhase.SETTLED, MoveAct.FAIL),
    (MovePhase.MOVING, MoveNews.SOURCE_ENDED): (MovePhase.ALONE, MoveAct.NOTHING),
}


class MoveState:
    """Follows one choice."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = MovePhase.SETTLED

    @property
    def is_under_way(self) -> bool:
        """True while the run whose tokens count is one that has not told any."""
        return self.phase is MovePhase.MOVING or self.phase is MovePhase.ALONE

    def take(self, news: MoveNews) -> MoveAct:
        """Go on to the next phase and return what is to be done.

        Raises:
            LifecycleError: that cannot happen now; nothing was changed.
        """
        found = TRANSITIONS.get((self.phase, news))
        if found is None:
            raise LifecycleError(f"a choice that is {self.phase} cannot take {news}")
        self.phase, act = found
        return act

    def reset(self) -> None:
        """Take note that the only run has ended, and another may begin."""
        self.phase = MovePhase.SETTLED

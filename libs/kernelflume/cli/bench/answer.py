"""An answer as it was streamed, and how a request ended."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

OK = "ok"
TIMEOUT = "timeout"
CONNECTION = "connection"
INCOMPLETE = "incomplete"
"""The stream ended before its end was told."""
STREAM_ERROR = "stream-error"
"""The server sent an error in the stream."""
CANCELLED = "cancelled"
"""The run was interrupted."""


@dataclass(slots=True)
class Answer:
    """Grows while the answer comes in. Times are seconds of the loop's clock."""

    status: str = INCOMPLETE
    """``ok``, one of the words above, or an HTTP status other than 200 as text."""
    detail: str = ""
    """What the server or the connection said where it failed."""
    sent_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    ended_s: float = 0.0
    gaps_s: array[float] = field(default_factory=lambda: array("d"))
    """Between two events that brought something."""
    pieces: list[str] = field(default_factory=list)
    token_ids: array[int] = field(default_factory=lambda: array("q"))
    num_prompt: int | None = None
    num_counted_output: int | None = None
    """As the server counted."""
    num_cached: int | None = None
    """Tokens of the prompt that came from a cache, None where the server does not tell."""
    node: str = ""
    """Weight node that served it, where the server tells."""

    @property
    def ok(self) -> bool:
        """True when it came whole."""
        return self.status == OK

    @property
    def text(self) -> str:
        """What was generated, if text was kept."""
        return "".join(self.pieces)

    @property
    def num_output(self) -> int:
        """Tokens that were generated: as counted, else those told, else one for each event."""
        if self.num_counted_output is not None:
            return self.num_counted_output
        return len(self.token_ids) or len(self.gaps_s) + (self.first_s is not None)

    def arrived(self, now_s: float) -> None:
        """Take note of an event that brought something."""
        if self.last_s is None:
            self.first_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_s)
        self.last_s = now_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        """Seconds to the last token, or to the end where none came."""
        return (self.ended_s if self.last_s is None else self.last_s) - self.sent_s

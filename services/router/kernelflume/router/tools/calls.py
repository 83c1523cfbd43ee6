"""What is found of tool calls while a model writes, and the seam to the formats they are written in."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of its arguments, an object."""

    def to_template(self) -> dict[str, Any]:
        """Return the tool as chat templates and models read it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call."""

    call_id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What is added to one call."""

    index: int
    """Of the call within its choice."""
    arguments: str
    call_id: str | None = None
    """Set in a call's first delta only, as is ``name``."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a piece of a model's text turned out to be."""

    text: str = ""
    """What belongs to no call."""
    calls: Sequence[CallDelta] = ()


class ToolParser(Protocol):
    """Finds calls in one choice's text, which comes in pieces. Used by one choice only."""

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        ...

    @property
    def complete(self) -> bool:
        """True when nothing more is wanted: the choice can end here."""
        ...

    def feed(self, text: str) -> Parsed:
        """Take the next piece."""
        ...

    def flush(self) -> Parsed:
        """Return what was held back, once no more text comes."""
        ...


class ToolFormat(Protocol):
    """How a family of models is told of tools, and how it writes calls."""

    @property
    def name(self) -> str:
        """What the setting ``tool_call_parser`` calls it."""
        ...

    @property
    def tags(self) -> frozenset[str]:
        """Tokens that calls are found by: shown in the text even where they are special tokens."""
        ...

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the system text for a chat template that knows no tools."""
        ...

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Return earlier calls as the model would have written them."""
        ...

    def write_result(self, content: str) -> str:
        """Return what a tool answered, as text of a user's message."""
        ...

    def new_parser(self, names: frozenset[str], *, max_calls: int | None) -> ToolParser:
        """Return a parser for one choice.

        Args:
            names: functions that exist; what calls another one is text.
            max_calls: end the choice after as many; None: no limit.
        """
        ...


def new_call_id() -> str:
    """Return an id for a call, as OpenAI writes them."""
    return f"call_{uuid.uuid4().hex[:24]}"

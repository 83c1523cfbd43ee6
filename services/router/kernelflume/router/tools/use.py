"""What one request wants of tools: which there are, whether one must be called, how calls are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router.tools.required import (
    ListedCallsParser,
    NamedCallParser,
    arguments_schema,
    calls_or_schema,
    calls_schema,
)
from kernelflume.router.tools.tagged import GuidedParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.tools.calls import Tool, ToolFormat, ToolParser


class ToolMode(StrEnum):
    """Whether the model calls tools, in OpenAI's words."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request."""

    tools: Sequence[Tool] = ()
    mode: ToolMode = ToolMode.NONE
    forced_name: str | None = None
    """The function that must be called, in mode NAMED."""
    parallel: bool = True
    """More than one call in an answer."""

    @property
    def active(self) -> bool:
        """True when the answer may hold calls."""
        return self.mode is not ToolMode.NONE

    @property
    def shown(self) -> Sequence[Tool]:
        """The tools that the prompt tells the model of."""
        return self.tools if self.active else ()

    @property
    def _max_calls(self) -> int | None:
        return None if self.parallel else 1

    def schema(self, text_schema: Any = None) -> Any:
        """Return the JSON schema that the answer must follow; None where the model is free.

        Args:
            text_schema: what an answer without calls must follow; None: it is free.

        Raises:
            InvalidRequestError: the forced function is not among the tools.
        """
        match self.mode:
            case ToolMode.REQUIRED:
                return calls_schema(self.tools, max_calls=self._max_calls)
            case ToolMode.NAMED:
                return arguments_schema(self._forced())
            case ToolMode.AUTO if text_schema is not None:
                return calls_or_schema(self.tools, text_schema, max_calls=self._max_calls)
        return None

    def new_parser(self, tool_format: ToolFormat, *, guided: bool) -> ToolParser | None:
        """Return a parser for one choice, or None where its text holds no calls.

        Args:
            tool_format: how the model writes calls where it is free.
            guided: the text follows ``schema``.
        """
        names = frozenset(tool.name for tool in self.tools)
        match self.mode:
            case ToolMode.AUTO if guided:
                return GuidedParser(names, max_calls=self._max_calls)
            case ToolMode.AUTO:
                return tool_format.new_parser(names, max_calls=self._max_calls)
            case ToolMode.REQUIRED:
                return ListedCallsParser(names, max_calls=self._max_calls)
            case ToolMode.NAMED:
                return NamedCallParser(self._forced().name)
        return None

    def _forced(self) -> Tool:
        for tool in self.tools:
            if tool.name == self.forced_name:
                return tool
        raise InvalidRequestError(
            f"tool_choice names the function {json.dumps(self.forced_name)}, which is not among tools",
            parameter="tool_choice",
        )


NO_TOOLS = ToolUse()

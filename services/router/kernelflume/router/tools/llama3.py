"""The format of Llama 3: a message that is a call, or calls after ``<|python_tag|>``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kernelflume.router.tools.hermes import write_call
from kernelflume.router.tools.tagged import TaggedParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.tools.calls import Tool, ToolCall, ToolParser
_OPENING = "<|python_tag|>"


class Llama3Format:
    """``{"name": ..., "parameters": {...}}``, more calls after a semicolon."""

    name = "llama3"
    tags = frozenset({_OPENING})

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the system text for a chat template that knows no tools."""
        functions = [json.dumps(tool.to_template(), indent=4, ensure_ascii=False) for tool in tools]
        signatures = "\n\n".join(functions)
        return (
            "You have access to the functions below. To call one, answer with nothing but JSON in this "
            'format, without variables: {"name": "function name", "parameters": {"argument": "value"}}. '
            "Separate more than one call by semicolons.\n\n"
            f"{signatures}"
        )

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Return earlier calls as the model would have written them."""
        return "; ".join(write_call(call, key="parameters") for call in calls)

    def write_result(self, content: str) -> str:
        """Return what a tool answered."""
        return f"The function returned: {content}"

    def new_parser(self, names: frozenset[str], *, max_calls: int | None) -> ToolParser:
        """Return a parser for one choice."""
        return TaggedParser(names, opening=_OPENING, max_calls=max_calls, bare=True)

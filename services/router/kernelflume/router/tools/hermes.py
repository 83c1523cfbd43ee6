"""The format of Hermes and Qwen: each call as a JSON object in a tag of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kernelflume.router.tools.tagged import TaggedParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.tools.calls import Tool, ToolCall, ToolParser

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


class HermesFormat:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, results in ``<tool_response>``."""

    name = "hermes"
    tags = frozenset({_OPENING, _CLOSING})

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the system text for a chat template that knows no tools."""
        signatures = "\n".join(json.dumps(tool.to_template(), ensure_ascii=False) for tool in tools)
        return (
            "You can call functions. Their signatures stand within <tools></tools>, one a line:\n"
            f"<tools>\n{signatures}\n</tools>\n"
            "To call a function, write a JSON object with its name and its arguments within tags, "
            "one such block for each call:\n"
            f'{_OPENING}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n{_CLOSING}\n'
            "What the function returned then comes within <tool_response></tool_response>."
        )

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Return earlier calls as the model would have written them."""
        return "\n".join(f"{_OPENING}\n{write_call(call)}\n{_CLOSING}" for call in calls)

    def write_result(self, content: str) -> str:
        """Return what a tool answered."""
        return f"<tool_response>\n{content}\n</tool_response>"

    def new_parser(self, names: frozenset[str], *, max_calls: int | None) -> ToolParser:
        """Return a parser for one choice."""
        return TaggedParser(names, opening=_OPENING, closing=_CLOSING, max_calls=max_calls)


def write_call(call: ToolCall, *, key: str = "arguments") -> str:
    """Return a call as a JSON object; arguments that are no JSON stay as they are."""
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{key}": {call.arguments or "{}"}}}'

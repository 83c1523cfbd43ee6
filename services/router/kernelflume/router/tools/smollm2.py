"""The format of SmolLM2: all calls as one JSON list in a tag."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kernelflume.router.tools.hermes import write_call
from kernelflume.router.tools.tagged import TaggedParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.tools.calls import Tool, ToolCall, ToolParser

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


class SmolLM2Format:
    """``<tool_call>[{"name": ..., "arguments": {...}}, ...]</tool_call>``; an empty list: none is needed."""

    name = "smollm2"
    tags = frozenset({_OPENING, _CLOSING})

    def instructions(self, tools: Sequence[Tool]) -> str:
        """Return the system text for a chat template that knows no tools."""
        functions = [tool.to_template()["function"] for tool in tools]
        return (
            "You are an expert in composing functions. From the question, make the function calls that are "
            "needed. If no function fits, or the question lacks a required parameter, say so.\n\n"
            f"You have access to these tools:\n<tools>{json.dumps(functions, ensure_ascii=False)}</tools>\n\n"
            "To call functions, write a list of calls in this format, with parameters of the right type, "
            "and nothing else:\n"
            f"{_OPENING}[\n"
            '{"name": "func_name1", "arguments": {"argument1": "value1", "argument2": "value2"}},\n'
            "... (more calls if needed)\n"
            f"]{_CLOSING}"
        )

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Return earlier calls as the model would have written them."""
        listed = ",\n".join(map(write_call, calls))
        return f"{_OPENING}[\n{listed}\n]{_CLOSING}"

    def write_result(self, content: str) -> str:
        """Return what a tool answered."""
        return f"<tool_response>{content}</tool_response>"

    def new_parser(self, names: frozenset[str], *, max_calls: int | None) -> ToolParser:
        """Return a parser for one choice."""
        return TaggedParser(names, opening=_OPENING, closing=_CLOSING, max_calls=max_calls)

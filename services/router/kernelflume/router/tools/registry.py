"""Which format of calls a model writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from kernelflume.router.tools.hermes import HermesFormat
from kernelflume.router.tools.llama3 import Llama3Format
from kernelflume.router.tools.smollm2 import SmolLM2Format

if TYPE_CHECKING:
    from kernelflume.router.tools.calls import ToolFormat

ToolParserName = Literal["auto", "hermes", "llama3", "smollm2"]

_USES_TOOLS = re.compile(r"\{[{%](?:(?![}%]\}).)*\btools\b", re.DOTALL)


def choose_format(name: ToolParserName, chat_template: str | None) -> ToolFormat:
    """Return the format called ``name``; ``auto`` is the one that the chat template shows.

    A template that shows none is taken for a model that follows instructions: it is told of Hermes' format,
    which most models have seen.
    """
    match name if name != "auto" else _recognise(chat_template or ""):
        case "llama3":
            return Llama3Format()
        case "smollm2":
            return SmolLM2Format()
    return HermesFormat()


def knows_tools(chat_template: str | None) -> bool:
    """Tell whether a chat template shows tools to the model."""
    return chat_template is not None and _USES_TOOLS.search(chat_template) is not None


def _recognise(chat_template: str) -> ToolParserName:
    if "SmolLM" in chat_template and "<tool_call>" not in chat_template:
        return "smollm2"
    if "<tool_call>" in chat_template:
        return "hermes"
    if "<|python_tag|>" in chat_template or "<|start_header_id|>" in chat_template:
        return "llama3"
    return "hermes"

"""A conversation with tools for a chat template that knows none: as system text and plain messages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelflume.router.tools.calls import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.tools.calls import Tool, ToolFormat

Message = dict[str, Any]


def without_tools(
    messages: Sequence[Message], tools: Sequence[Tool], tool_format: ToolFormat
) -> list[Message]:
    """Return the conversation in messages of a system, a user and an assistant only.

    Args:
        messages: as chat templates read them.
        tools: what the model is told of, by a text at the end of the system's message.
        tool_format: how calls and results are written.
    """
    plain: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            result = tool_format.write_result(message["content"])
            # Results of calls made at once are one message: templates want users and assistants in turn.
            if plain and plain[-1].pop("_is_result", False):
                result = f"{plain.pop()['content']}\n{result}"
            plain.append({"role": "user", "content": result, "_is_result": True})
        elif message.get("tool_calls"):
            calls = tool_format.write_calls([_call_of(call) for call in message["tool_calls"]])
            text = "\n".join(filter(None, [message["content"], calls]))
            plain.append({"role": message["role"], "content": text})
        else:
            plain.append(dict(message))
    for message in plain:
        message.pop("_is_result", None)
    return _with_instructions(plain, tool_format.instructions(tools)) if tools else plain


def _with_instructions(messages: list[Message], instructions: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{instructions}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _call_of(call: Message) -> ToolCall:
    return ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kernelflume.router.tools.calls import Tool, ToolCall
from kernelflume.router.tools.hermes import HermesFormat
from kernelflume.router.tools.llama3 import Llama3Format
from kernelflume.router.tools.prompt import without_tools
from kernelflume.router.tools.registry import choose_format, knows_tools
from kernelflume.router.tools.required import ListedCallsParser, NamedCallParser, calls_schema
from kernelflume.router.tools.smollm2 import SmolLM2Format

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.router.tools.calls import ToolFormat, ToolParser

NAMES = frozenset({"f", "g"})
NESTED = '{"a": "}]\\"{", "b": [1, {"c": null}], "d": "é\\u00e9"}'


def read(parser: ToolParser, pieces: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls, checking that each call begins once and that numbers rise."""
    text = ""
    calls: list[tuple[str, str]] = []
    for piece in [*pieces, None]:
        parsed = parser.flush() if piece is None else parser.feed(piece)
        text += parsed.text
        for delta in parsed.calls:
            if delta.name is not None:
                assert delta.index == len(calls)
                assert delta.call_id
                calls.append((delta.name, delta.arguments))
            else:
                assert delta.index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert parser.num_calls == len(calls)
    return text, calls


F, G = '{"name": "f", "arguments": {"x": 1}}', '{"arguments": {}, "name": "g"}'
F_CALL, G_CALL = ("f", '{"x": 1}'), ("g", "{}")

HERMES = [
    ("plain text", "plain text", []),
    (f"<tool_call>\n{F}\n</tool_call>", "", [F_CALL]),
    (f"Sure.\n<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call>\n", "Sure.\n", [F_CALL, G_CALL]),
    (f"<tool_call>{F}</tool_call> and more", " and more", [F_CALL]),
    (f"\n\n<tool_call>{F}", "", [F_CALL]),
    (f"<tool_call>[{F}, {G}]</tool_call>", "", [F_CALL, G_CALL]),
    ("<tool_call>[]</tool_call>", "", []),
    ("<tool_call>", "<tool_call>", []),
    ("a <tool", "a <tool", []),
    ('<tool_call>{"name": "h", "arguments": {}}</tool_call>', '<tool_call>{"name": "h"', []),
    ("<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", []),
    ('<tool_call>{"name": "f", "arguments": {"x": ', "", [("f", '{"x": ')]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [F_CALL]),
    (f'<tool_call>{{"id": 7, "name": "f", "arguments": {NESTED}}}</tool_call>', "", [("f", NESTED)]),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "<tool_call>", []),
]


@pytest.mark.parametrize("tool_format", [HermesFormat(), SmolLM2Format()])
@pytest.mark.parametrize(("whole", "text", "calls"), HERMES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_tagged_calls_are_found_however_the_text_is_cut(
    tool_format: ToolFormat, whole: str, text: str, calls: list[tuple[str, str]], size: int
) -> None:
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    shown, found = read(tool_format.new_parser(NAMES, max_calls=None), pieces)
    assert found == calls
    if calls or "{" not in whole:
        assert shown == text
    else:
        # What is no call comes back in full.
        assert shown.startswith(text)
        assert shown == whole


F3, G3 = F.replace("arguments", "parameters"), G.replace("arguments", "parameters")
LLAMA3 = [
    (F3, "", [F_CALL]),
    (f"<|python_tag|>{F3}; {G3}", "", [F_CALL, G_CALL]),
    (f"[{F}, {G}]", "", [F_CALL, G_CALL]),
    (f"Let me see. <|python_tag|>{F3}", "Let me see. ", [F_CALL]),
    ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ('{"a": [1, 2]} is JSON', '{"a": [1, 2]} is JSON', []),
    ("[1, 2]", "[1, 2]", []),
    ("[", "[", []),
    ("  text", "  text", []),
    ("  ", "  ", []),
    ("", "", []),
    (f"{F3} and so on", "and so on", [F_CALL]),
]


@pytest.mark.parametrize(("whole", "text", "calls"), LLAMA3)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_llama3_calls_stand_at_the_start_or_after_the_tag(
    whole: str, text: str, calls: list[tuple[str, str]], size: int
) -> None:
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert read(Llama3Format().new_parser(NAMES, max_calls=None), pieces) == (text, calls)


def test_arguments_come_while_they_are_written() -> None:
    parser = HermesFormat().new_parser(NAMES, max_calls=None)
    assert not parser.feed('<tool_call>{"name": "').calls
    assert not parser.feed('f", "arguments":').calls
    assert [(delta.name, delta.arguments) for delta in parser.feed(' {"x": "lo').calls] == [
        ("f", '{"x": "lo')
    ]
    assert [delta.arguments for delta in parser.feed('ng"').calls] == ['ng"']


@pytest.mark.parametrize("tool_format", [HermesFormat(), SmolLM2Format(), Llama3Format()])
def test_one_call_is_enough_where_they_must_not_be_parallel(tool_format: ToolFormat) -> None:
    parser = tool_format.new_parser(NAMES, max_calls=1)
    text = tool_format.write_calls([ToolCall("1", "f", '{"x": 1}'), ToolCall("2", "g", "{}")])
    assert read(parser, list(text)) == ("", [F_CALL])
    assert parser.complete


@pytest.mark.parametrize("tool_format", [HermesFormat(), SmolLM2Format(), Llama3Format()])
def test_a_format_reads_what_it_writes_and_shows_the_tools(tool_format: ToolFormat) -> None:
    text = tool_format.write_calls([ToolCall("1", "f", NESTED), ToolCall("2", "g", "{}")])
    calls = read(tool_format.new_parser(NAMES, max_calls=None), [text])[1]
    assert calls == [("f", NESTED), ("g", "{}")]
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    shown = tool_format.instructions([Tool("f", "does things", parameters)])
    assert '"f"' in shown
    assert "does things" in shown
    assert choose_format(tool_format.name, None).name == tool_format.name  # type: ignore[arg-type]


def test_required_calls_are_a_list_and_named_ones_arguments() -> None:
    listed = f"[{F},{G}]"
    for size in (1, 5, 100):
        pieces = [listed[at : at + size] for at in range(0, len(listed), size)]
        assert read(ListedCallsParser(NAMES, max_calls=None), pieces) == ("", [F_CALL, G_CALL])
        assert read(ListedCallsParser(NAMES, max_calls=1), pieces) == ("", [F_CALL])
    assert read(NamedCallParser("f"), ["", '{"x"', ": 1}"]) == ("", [F_CALL])


def test_the_schema_of_required_calls_keeps_references_whole() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/leaf"}}}
    tree["$defs"] = {"leaf": {"type": "string"}}
    schema = calls_schema([Tool("f", "", tree), Tool("g")], max_calls=2)
    text = json.dumps(schema)
    assert schema["minItems"] == 1
    assert schema["maxItems"] == 2
    moved = schema["$defs"]["tool0"]
    assert moved["properties"]["next"] == {"$ref": "#/$defs/tool0"}
    assert moved["properties"]["leaf"] == {"$ref": "#/$defs/tool0/$defs/leaf"}
    assert '{"const": "g"}, "arguments": {"type": "object"}' in text
    assert "maxItems" not in calls_schema([Tool("f")], max_calls=None)


@pytest.mark.parametrize(
    ("template", "name", "knows"),
    [
        (None, "hermes", False),
        ("{{ messages }} these tools", "hermes", False),
        ("{% if tools %}<tool_call>{% endif %}", "hermes", True),
        ("{{ 'named SmolLM' }}", "smollm2", False),
        ("<|start_header_id|>{%- for t in tools %}", "llama3", True),
    ],
)
def test_the_format_is_chosen_by_the_chat_template(template: str | None, name: str, knows: bool) -> None:
    assert choose_format("auto", template).name == name
    assert knows_tools(template) is knows


def test_a_conversation_with_tools_becomes_one_of_users_and_assistants() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "one", "tool_call_id": "1"},
        {"role": "tool", "content": "two", "tool_call_id": "1"},
    ]
    plain = without_tools(messages, [Tool("f")], HermesFormat())
    assert [message["role"] for message in plain] == ["system", "user", "assistant", "user"]
    assert plain[0]["content"].startswith("Be brief.\n\nYou can call functions.")
    assert plain[2]["content"].count("<tool_call>") == 2
    assert plain[3] == {
        "role": "user",
        "content": "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>",
    }
    assert without_tools(messages[1:2], [Tool("f")], HermesFormat())[0]["role"] == "system"
    assert without_tools(messages[:2], [], HermesFormat()) == messages[:2]

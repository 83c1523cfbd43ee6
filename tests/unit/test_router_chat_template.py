"""The template as it is rendered here and by transformers: the same text, in the same sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from tests.router_parts import TEMPLATE
from transformers.utils.chat_template_utils import render_jinja_template

from kernelflume.router.chat_template import ChatTemplate

USER = {"role": "user", "content": "Hi <&> "}
ANSWER = {"role": "assistant", "content": "It is"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
BUSY = """{%- set state = namespace(count=0) -%}
{%- for message in messages -%}
    {%- if loop.index > 9 %}{% break %}{% endif -%}
    {%- set state.count = state.count + 1 -%}
    {{ message.role }}:{{ message['content'] | trim }}:{{ dict(a=state.count) | tojson }}
{% endfor -%}
{% generation %}{{ tools | tojson(indent=2) }}{% endgeneration %}
{{ extra }}{{ bos_token }}{{ documents is none }}{{ missing is defined }}
{%- if add_generation_prompt %}assistant:{% endif %}"""


@pytest.mark.parametrize("source", [TEMPLATE, BUSY])
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("continue_final_message", [False, True])
def test_a_text_is_what_transformers_makes_of_it(
    source: str, tools: list[dict[str, Any]] | None, add_generation_prompt: bool, continue_final_message: bool
) -> None:
    messages = [USER, ANSWER]
    variables = {"extra": {"a": [1, None]}, "bos_token": "<s>"}
    [expected], _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        **variables,
    )
    template = ChatTemplate(source)
    for _ in range(2):  # compiled, and again
        rendered = template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        assert rendered == expected
    assert messages == [USER, ANSWER]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("{{ messages.append(1) }}", SecurityError),
        ("{{ messages.__class__.__mro__ }}{{ ().__class__.__base__.__subclasses__() }}", SecurityError),
        ("{% set n = namespace(__init__=1) %}", SecurityError),
        ("{{ raise_exception('no') }}", TemplateError),
        ("{% for %}", TemplateError),
    ],
)
def test_a_template_may_do_no_more_than_with_transformers(source: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        ChatTemplate(source).render(
            [USER], tools=None, add_generation_prompt=True, continue_final_message=False, variables={}
        )

"""A model's chat template: what makes one text of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.utils import chat_template_utils

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template


class ChatTemplate:
    """Renders conversations of plain JSON values. Any thread may use it.

    The template is the model's own code and runs in transformers' sandbox, from which the one compiled here
    is taken. transformers' own call copies all values and all names first, which takes longer than the
    template does; it is needed where a final message is continued.
    """

    def __init__(self, source: str) -> None:
        """Take a template, which is compiled when it is first used.

        Args:
            source: in Jinja.
        """
        self._source = source
        self._compiled: Template | None = None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: of it, which stay as they are.
            tools: those that the template is shown.
            add_generation_prompt: begin a new message of the assistant.
            continue_final_message: leave the final message open instead.
            variables: further ones, by their names.

        Raises:
            Exception: the template's code refuses the conversation, in whatever way.
        """
        if continue_final_message:
            texts, _ = chat_template_utils.render_jinja_template(
                [messages],
                tools=tools,
                chat_template=self._source,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=True,
                **variables,
            )
            return str(texts[0])
        if self._compiled is None:
            self._compiled = _compile(self._source)
        return self._compiled.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )


def _compile(source: str) -> Template:
    """Compile a template in transformers' sandbox, with its names in one dictionary, as a chain is slow."""
    # Not public, and checked by a test: there is no other way to the sandbox that it has for models' code.
    sandbox = chat_template_utils._compile_jinja_template(source).environment  # noqa: SLF001
    code = sandbox.compile(source)
    template: Template = sandbox.template_class.from_code(sandbox, code, dict(sandbox.globals))
    return template

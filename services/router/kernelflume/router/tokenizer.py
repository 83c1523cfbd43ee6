"""The model's tokenizer and chat template, without torch and off the event loop for long texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer as FastTokenizer

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.router.byte_level import NUM_BYTES, byte_alphabet, token_bytes
from kernelflume.router.chat_template import ChatTemplate
from kernelflume.router.detokenizer import BytesDetokenizer, Detokenizer, WindowDetokenizer
from kernelflume.router.errors import ContextLengthError
from kernelflume.router.segments import SegmentCache, Splitter, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kernelflume.router.segments import Segment
    from kernelflume.router.workers import Workers

LONG_TEXT_CHARS = 2000
"""Texts from here on go to a thread: half a millisecond of work, more than handing over costs."""
_LONG_SPLIT_CHARS = 16 * LONG_TEXT_CHARS
"""The same for texts that only have to be split, as what lies between special tokens is known."""
_PLAIN_VALUE_CHARS = 8
"""What a value that is rendered counts for besides its text."""
_KEPT_BYTES = 32 * 1024 * 1024
"""Of texts between special tokens, with their ids."""

_PIECE_CHARS = 1 << 17
"""Texts that may be far too long are counted in pieces of so many characters, which take some 50 MiB."""
_LIKELY_CHARS = 8
"""Characters a token: a text that needs more of them to fit the context is counted first."""
_MAX_UNCOUNTED_CHARS = 1 << 20
"""So is a longer text than this."""
_CUT_TOKENS = 256
"""A piece that is cut out of a text has at most so many tokens more than it has there."""

_TEMPLATE_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
_RESERVED_TEMPLATE_NAMES = frozenset(
    {
        "conversations",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "return_assistant_tokens_mask",
        "continue_final_message",
        "add_generation_prompt",
        *_TEMPLATE_TOKENS,
    }
)
_TEMPLATE_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE_MARK = "\u2581"
"""What SentencePiece writes for a space."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Parted:
    """A text between whose special tokens some parts are known."""

    segments: Sequence[Segment]
    known: Mapping[str, Sequence[int]]
    missing: Sequence[str]
    """Texts that are not known, each once."""

    @property
    def num_missing_chars(self) -> int:
        return sum(map(len, self.missing))


class Tokenizer:
    """Text to ids and back. Immutable after construction, so any thread may use it."""

    def __init__(
        self,
        tokenizer: FastTokenizer,
        *,
        workers: Workers,
        chat_template: str | None = None,
        tool_template: str | None = None,
        template_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: the tokenizer itself; its truncation and padding are turned off.
            workers: do the work on long texts.
            chat_template: Jinja template of the model, if it is a chat model.
            tool_template: another one for conversations with tools, if the model has two.
            template_tokens: special tokens by the names that templates use (``bos_token`` ...).
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._workers = workers
        self._chat_template = None if chat_template is None else ChatTemplate(chat_template)
        self._tool_source = tool_template or chat_template
        self._tool_template = self._chat_template if tool_template is None else ChatTemplate(tool_template)
        self._template_tokens = dict(template_tokens or {})
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(number for number, token in added.items() if token.special)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the largest id that has a text."""
        self._longest_token_chars = max(map(len, vocabulary), default=1)
        self._tokens: list[str | None] = [None] * self.vocab_size
        for token, number in vocabulary.items():
            self._tokens[number] = token
        bos = self._template_tokens.get("bos_token")
        self.bos_token_id: int | None = vocabulary.get(bos) if bos else None
        description = describe(tokenizer)
        is_byte_level = (description["decoder"] or {}).get("type") == "ByteLevel"
        self._byte_tables = self._make_byte_tables() if is_byte_level else None
        self._splitter = Splitter.of(tokenizer, description)
        self._segments = SegmentCache(_KEPT_BYTES)
        self._adds_tokens = tokenizer.num_special_tokens_to_add(False) > 0

    @classmethod
    def load(cls, folder: Path, *, workers: Workers) -> Tokenizer:
        """Load from a folder in Hugging Face layout.

        Raises:
            ConfigurationError: a file is missing or cannot be understood.
        """
        try:
            tokenizer = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise ConfigurationError(f"model: cannot read {folder / 'tokenizer.json'}: {error}") from error
        config = _read_json(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        template = _template(config.get("chat_template"), "default")
        if template_file.is_file():
            template = template_file.read_text(encoding="utf-8")
        tokens = {name: _token_text(config.get(name)) for name in _TEMPLATE_TOKENS}
        return cls(
            tokenizer,
            workers=workers,
            chat_template=template,
            tool_template=_template(config.get("chat_template"), "tool_use"),
            template_tokens={name: text for name, text in tokens.items() if text is not None},
        )

    async def encode(
        self, text: str, *, add_special_tokens: bool, max_tokens: int, owner: str | None = None
    ) -> list[int]:
        """Return the ids of a text.

        Args:
            text: what to encode.
            add_special_tokens: add those that the model wants around a text, such as bos.
            max_tokens: the text may be refused, not read to its end, if it must have more than these.
            owner: whose other texts may have parts in common with it; None: look for none, and keep none.

        Raises:
            ContextLengthError: the text is far too long.
            OverloadedError: nobody came to work on it in time.
        """
        # A normalizer may shorten a text, so only without one do its characters bound its tokens from below.
        if self._tokenizer.normalizer is None and len(text) > max_tokens * self._longest_token_chars:
            raise ContextLengthError(
                f"This model's maximum context length is {max_tokens} tokens, "
                f"and {len(text)} characters of text do not fit it."
            )
        if len(text) > max(_PIECE_CHARS, min(_LIKELY_CHARS * max_tokens, _MAX_UNCOUNTED_CHARS)):
            await self._workers.run(partial(self._check_length, text, max_tokens))
        splitter = self._splitter
        if owner is None or splitter is None or (add_special_tokens and self._adds_tokens):
            encode = partial(self._encode, text, add_special_tokens=add_special_tokens)
            return await self._run(len(text), encode)
        if len(text) < _LONG_SPLIT_CHARS:
            parted = self._part(text, splitter, owner)
            return await self._run(parted.num_missing_chars, partial(self._join, parted, owner))
        return await self._run(len(text), lambda: self._join(self._part(text, splitter, owner), owner))

    async def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any],
        tools: list[dict[str, Any]] | None = None,
        with_tools: bool = False,
    ) -> str:
        """Return a conversation as the text that the model was trained to read.

        Args:
            messages: of the conversation.
            add_generation_prompt: begin a new message of the assistant.
            continue_final_message: leave the final message open instead.
            template_kwargs: further variables for the template.
            tools: those that the template shows, if it can.
            with_tools: tools are part of the conversation.

        Raises:
            InvalidRequestError: the model has no template, or the template refuses the conversation.
        """
        template = self._tool_template if with_tools else self._chat_template
        if template is None:
            raise InvalidRequestError(
                "This model has no chat template; use /v1/completions.", parameter="messages"
            )
        taken = sorted(_RESERVED_TEMPLATE_NAMES & template_kwargs.keys())
        if taken:
            raise InvalidRequestError(
                f"chat_template_kwargs may not set {', '.join(taken)}", parameter="chat_template_kwargs"
            )

        def render() -> str:
            try:
                return template.render(
                    list(messages),
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    variables={**self._template_tokens, **template_kwargs},
                )
            except _TEMPLATE_FAILURES as error:
                # The template is the model's own code; what it raises it raises about the conversation.
                message = f"The chat template refused the conversation: {error}"
                raise InvalidRequestError(message, parameter="messages") from error

        if _is_long(messages, tools, template_kwargs):
            return await self._workers.run(render)
        return render()

    @property
    def tool_template(self) -> str | None:
        """The template of conversations with tools, if this is a chat model."""
        return self._tool_source

    def token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary writes it, or None if there is none with this id."""
        return self._tokens[token_id] if token_id < len(self._tokens) else None

    async def decode_later(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included, without holding others up if there are many."""
        return await self._run(len(token_ids), partial(self.decode, token_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, special tokens included; none for an id without text."""
        if self._byte_tables is not None:
            table = self._byte_tables[frozenset()]
            return table[token_id] if token_id < len(table) else b""
        token = self._tokens[token_id] if token_id < len(self._tokens) else None
        if token is None:
            return b""
        if _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(token[3:5])
        return token.replace(_SPACE_MARK, " ").encode()

    def new_detokenizer(
        self, *, skip_special_tokens: bool, shown: frozenset[str] = frozenset()
    ) -> Detokenizer:
        """Return a detokenizer for one choice.

        Args:
            skip_special_tokens: show nothing for these.
            shown: special tokens to show nevertheless.
        """
        hidden = self._special_ids if skip_special_tokens else frozenset()
        if shown and hidden:
            hidden -= {self._tokenizer.token_to_id(token) for token in shown}
        if self._byte_tables is not None:
            return BytesDetokenizer(self._byte_table(hidden))
        return WindowDetokenizer(
            self.decode,
            silent_ids=hidden,
            byte_ids=self._byte_ids(),
            vocab_size=self.vocab_size,
        )

    async def _run(self, num_chars: int, work: Callable[[], T]) -> T:
        if num_chars < LONG_TEXT_CHARS:
            return work()
        return await self._workers.run(work)

    def _check_length(self, text: str, max_tokens: int) -> None:
        """Refuse a text that has more tokens than it may, without ever holding what is made of all of it.

        While a text is tokenized it takes some 60 to 300 times its size: the more, the more tokens it has.
        """
        num_tokens = 0
        for begin in range(0, len(text), _PIECE_CHARS):
            [encoding] = self._tokenizer.encode_batch_fast(
                [text[begin : begin + _PIECE_CHARS]], add_special_tokens=False
            )
            num_tokens += len(encoding) - _CUT_TOKENS
            if num_tokens > max_tokens:
                raise ContextLengthError(
                    f"This model's maximum context length is {max_tokens} tokens, and the first "
                    f"{min(begin + _PIECE_CHARS, len(text))} of {len(text)} characters of text do not fit it."
                )

    def _part(self, text: str, splitter: Splitter, owner: str) -> _Parted:
        """Split a text, and find what is known of its parts."""
        segments = list(splitter.split(text))
        texts = dict.fromkeys(segment.text for segment in segments if segment.token_id is None)
        known = self._segments.find(owner, texts)
        return _Parted(segments, known, [part for part in texts if part not in known])

    def _join(self, parted: _Parted, owner: str) -> list[int]:
        """Return the ids of a text from those of its parts; those that were missing are kept."""
        if parted.num_missing_chars < LONG_TEXT_CHARS:
            # One by one, as the batch call gives the interpreter away.
            found = [self._encode(text, add_special_tokens=False) for text in parted.missing]
        else:
            encodings = self._tokenizer.encode_batch_fast(parted.missing, add_special_tokens=False)
            found = [encoding.ids for encoding in encodings]
        for text, ids in zip(parted.missing, found, strict=True):
            self._segments.keep(owner, text, ids)
        known = {**parted.known, **dict(zip(parted.missing, found, strict=True))}
        joined: list[int] = []
        for segment in parted.segments:
            if segment.token_id is None:
                joined += known[segment.text]
            else:
                joined.append(segment.token_id)
        return joined

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG_TEXT_CHARS:
            # Getting the interpreter back from other threads would take longer than this does.
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        # The batch call lets other threads run while it works; the plain one does not.
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encodings[0].ids)

    def _make_byte_tables(self) -> dict[frozenset[int], list[bytes]]:
        """Return the bytes by id, by what is hidden: nothing at first."""
        byte_of = {char: byte for byte, char in enumerate(byte_alphabet())}
        return {frozenset(): [token_bytes(token, byte_of) for token in self._tokens]}

    def _byte_table(self, hidden: frozenset[int]) -> list[bytes]:
        """Return the bytes by id. There are two or three tables in all, so each is made once and kept."""
        tables = self._byte_tables or self._make_byte_tables()
        table = tables.get(hidden)
        if table is None:
            table = [b"" if number in hidden else raw for number, raw in enumerate(tables[frozenset()])]
            tables[hidden] = table
        return table

    def _byte_ids(self) -> frozenset[int]:
        names = (f"<0x{byte:02X}>" for byte in range(NUM_BYTES))
        return frozenset(number for number in map(self._tokenizer.token_to_id, names) if number is not None)


def _is_long(*values: Any) -> bool:
    """Tell whether plain data has the size of a long text, without looking at all of it."""
    left = LONG_TEXT_CHARS
    pending = list(values)
    while pending and left > 0:
        value = pending.pop()
        left -= _PLAIN_VALUE_CHARS
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict | list):
            left -= len(value)
            if left > 0:
                pending += value.values() if isinstance(value, dict) else value
    return left <= 0


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"model: {path} is no JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _template(value: Any, name: str) -> str | None:
    """Return a template of a config: one text, which is the default, or one of a list of named ones."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get(name)
        return value if isinstance(value, str) else None
    return value if isinstance(value, str) and name == "default" else None


def _token_text(value: Any) -> str | None:
    """Return the text of a special token: written plainly, or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None

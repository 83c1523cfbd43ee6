"""The one module that knows xgrammar: grammars to compiled bytes, and these to matchers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import torch
import xgrammar

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.grammar import Grammar, GrammarKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.checkpoint.vocabulary import Vocabulary

MAX_COMPILED_BYTES = 16 * 1024 * 1024
"""A schema of a few hundred optional properties compiles to more; reading so much takes about a second."""
_PROBE_STEPS = 16
_PLACE_IN_SOURCE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
_ANY_OBJECT = '{"type": "object"}'
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class CompiledGrammar(Protocol):
    """What xgrammar makes of a grammar."""

    def serialize_json(self) -> str:
        """Return it as text."""
        ...


class GrammarMatcher(Protocol):
    """xgrammar's state of one text."""

    def fill_next_token_bitmask(self, bitmask: torch.Tensor, index: int = 0) -> bool:
        """Write which tokens may come next: bits of row ``index`` of an int32 tensor."""
        ...

    def accept_token(self, token_id: int) -> bool:
        """Go on by a token, where it is allowed."""
        ...

    def is_terminated(self) -> bool:
        """Tell whether an eos token was accepted."""
        ...


class GrammarToolkit:
    """Compiles grammars for one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """Read the vocabulary.

        Args:
            vocabulary: of the model.
            vocab_size: logits of a row; ids past the vocabulary are never allowed.
            eos_token_ids: tokens that may follow a complete text.
        """
        metadata = xgrammar.TokenizerInfo._detect_metadata_from_hf(  # noqa: SLF001 - its only way without transformers
            vocabulary.description
        )
        self._info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=metadata["vocab_type"],
            vocab_size=vocab_size,
            stop_token_ids=list(eos_token_ids),
            add_prefix_space=metadata["add_prefix_space"],
        )
        self._vocab_size = vocab_size
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def compile(self, grammar: Grammar) -> bytes:
        """Return a grammar in the form that ``load`` reads.

        It may take long, and much memory: run it where both are bounded.

        Raises:
            InvalidRequestError: it cannot be compiled, or no text follows it; the message says why.
        """
        try:
            compiled = self._compile(grammar)
            self._probe(compiled)
            content: bytes = compiled.serialize_json().encode()
        except (RuntimeError, TypeError, ValueError) as error:
            reason = _PLACE_IN_SOURCE.sub("", str(error)).strip()
            raise InvalidRequestError(
                f"the {grammar.kind} cannot be followed: {reason}", parameter=grammar.parameter
            ) from error
        if len(content) > MAX_COMPILED_BYTES:
            raise InvalidRequestError(
                f"the {grammar.kind} is too complex: it compiles to {len(content) >> 20} MiB, more than "
                f"{MAX_COMPILED_BYTES >> 20}",
                parameter=grammar.parameter,
            )
        return content

    def load(self, content: bytes) -> CompiledGrammar:
        """Read a compiled grammar."""
        compiled: CompiledGrammar = xgrammar.CompiledGrammar.deserialize_json(content.decode(), self._info)
        return compiled

    def _compile(self, grammar: Grammar) -> Any:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                return self._compiler.compile_json_schema(grammar.text)
            case GrammarKind.JSON_OBJECT:
                return self._compiler.compile_json_schema(_ANY_OBJECT)
            case GrammarKind.REGEX:
                return self._compiler.compile_regex(grammar.text)
            case GrammarKind.EBNF:
                return self._compiler.compile_grammar(grammar.text)
            case GrammarKind.CHOICE:
                rules = " | ".join(f'"{_escape(choice)}"' for choice in grammar.choices())
                return self._compiler.compile_grammar(f"root ::= {rules}")

    def _probe(self, compiled: CompiledGrammar) -> None:
        """Follow the grammar for some tokens: one that leads nowhere, or never returns, is found here."""
        matcher = new_matcher(compiled)
        words = torch.zeros((1, -(-self._vocab_size // 32)), dtype=torch.int32)
        for _ in range(_PROBE_STEPS):
            matcher.fill_next_token_bitmask(words, 0)
            bits = (words[0].unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)) & 1
            allowed = bits.flatten().nonzero().flatten()
            if not len(allowed):
                raise ValueError("no text follows it")
            matcher.accept_token(int(allowed[len(allowed) // 2]))
            if matcher.is_terminated():
                return


def new_matcher(compiled: CompiledGrammar) -> GrammarMatcher:
    """Return a matcher at the start of the text."""
    matcher: GrammarMatcher = xgrammar.GrammarMatcher(compiled)
    return matcher


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(char, char) for char in text)

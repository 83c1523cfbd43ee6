"""Grammars over a vocabulary of one token a byte, of which 0 is eos."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.checkpoint.vocabulary import Vocabulary
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.wnode.grammar.matcher import Matcher, MatcherSource
from kernelflume.wnode.grammar.toolkit import GrammarToolkit
from tests.inprocess import CONFIG

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock

EOS = 0


def byte_toolkit() -> GrammarToolkit:
    decoder = '{"decoder": null, "normalizer": null, "pre_tokenizer": null, "model": {"type": "BPE"}}'
    tokens = ["<eos>", *(chr(number) if number < 127 else "" for number in range(1, CONFIG.vocab_size))]
    return GrammarToolkit(
        Vocabulary(tuple(tokens), decoder), vocab_size=CONFIG.vocab_size, eos_token_ids=[EOS]
    )


def matcher_of(toolkit: GrammarToolkit, kind: GrammarKind, text: str, clock: Clock | None = None) -> Matcher:
    source = MatcherSource(toolkit, vocab_size=CONFIG.vocab_size, clock=clock or MonotonicClock())
    return source.open(toolkit.compile(Grammar(kind, text)))

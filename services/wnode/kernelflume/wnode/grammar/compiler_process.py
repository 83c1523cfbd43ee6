"""The process that compiles grammars: one that crashes, hangs or eats memory takes nothing else with it."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from kernelflume.checkpoint.vocabulary import load_vocabulary
from kernelflume.core.errors import InvalidRequestError
from kernelflume.runtime.tether import tether_to_parent
from kernelflume.wnode.grammar.toolkit import GrammarToolkit

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from kernelflume.core.grammar import Grammar

_MEMORY_BYTES = 4 << 30
"""Most data of the process; what compiles in time takes far less."""


def serve(
    connection: Connection, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], parent_pid: int
) -> None:
    """Answer grammars until the connection closes: compiled bytes, or the reason why not as text.

    The first answer, to nothing, says that the process is ready.
    """
    tether_to_parent(parent_pid)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _MEMORY_BYTES if most == resource.RLIM_INFINITY else min(_MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    toolkit = GrammarToolkit(load_vocabulary(folder), vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    connection.send(b"")
    while True:
        try:
            grammar: Grammar = connection.recv()
        except EOFError:
            return
        try:
            answer: bytes | str = toolkit.compile(grammar)
        except InvalidRequestError as error:
            answer = str(error)
        except MemoryError:
            answer = f"the {grammar.kind} takes too much memory to compile"
        connection.send(answer)

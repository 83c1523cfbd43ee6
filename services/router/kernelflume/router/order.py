"""One request, read and checked: what weight nodes are asked, and how it is answered."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router.choice import TOOL_CALLS
from kernelflume.router.schemas import GenerationBody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.router.formats import AnswerFormat, AnswerHead
    from kernelflume.router.tools.calls import ToolParser

B = TypeVar("B", bound=GenerationBody)


def _no_parser() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Order(Generic[B]):
    """One request, ready to run."""

    body: B
    model: str
    """Name the answer gives the model."""
    prompts: Sequence[Sequence[int]]
    """Token ids of each prompt."""
    samplings: Sequence[SamplingParameters]
    """Of each prompt's first choice."""
    echoes: Sequence[str]
    """What each prompt's choices begin with."""
    new_format: Callable[[AnswerHead], AnswerFormat]
    """How it is answered."""
    new_parser: Callable[[], ToolParser | None] = _no_parser
    """Finds tool calls in a choice."""
    shown: frozenset[str] = frozenset()
    """Special tokens that calls are found by."""
    called_reason: str = TOOL_CALLS
    """Why a choice ended that was stopped after a call."""
    own_name: Callable[[str | None], str | None] | None = None
    """What the request calls a parameter of the body; None: what the body calls it."""

    @contextmanager
    def naming_faults(self) -> Iterator[None]:
        """Let errors of weight nodes that leave the block name the field of the request."""
        try:
            yield
        except InvalidRequestError as error:
            parameter = self.body.own_name(error.parameter)
            error.parameter = parameter if self.own_name is None else self.own_name(parameter)
            raise

"""Places requests: what is known of prompts, sessions and nodes, brought before the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.retention import Retention
from kernelflume.router.placement.place import place
from kernelflume.router.placement.request import PlacementRequest
from kernelflume.router.prefixes import ContextKeys, Known, PrefixIndex
from kernelflume.router.sessions import SessionTable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kernelflume.core.request_class import RequestClass
    from kernelflume.router.placement.decision import Placement
    from kernelflume.router.placement.policies import PolicyName
    from kernelflume.router.sessions import SessionKey
    from kernelflume.router.settings import PlacementSettings
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.runtime.clock import Clock


class Prompt:
    """What is to be placed: tokens, whose they are, and their keys once somebody needs them.

    Shared by the choices of one prompt.
    """

    __slots__ = (
        "begun_on",
        "context",
        "is_shared",
        "retention",
        "salt",
        "session",
        "token_ids",
        "was_continued",
    )

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        session: SessionKey | None = None,
        salt: str = "",
        is_shared: bool = True,
        retention: Retention = Retention.UNCHANGED,
    ) -> None:
        """Take a prompt.

        Args:
            token_ids: its tokens.
            session: that the client names, if it does.
            salt: as weight nodes name its blocks with.
            is_shared: blocks of earlier prompts serve it: nothing is to be told of its own tokens.
            retention: how long its blocks are to stay.
        """
        self.token_ids = token_ids
        self.session = session
        self.salt = salt
        self.is_shared = is_shared
        self.retention = retention
        self.begun_on: str | None = None
        """Address of the node that is to compute it for the choice that was placed last."""
        self.context: ContextKeys | None = None
        """Keys of the prompt and, later, of an answer to it."""
        self.was_continued = False
        """``context`` has an answer."""

    def keys(self, block_tokens: int) -> ContextKeys | None:
        """Return its keys, which are made once; None where no blocks are found again."""
        if self.context is None and block_tokens and self.is_shared:
            self.context = ContextKeys(block_tokens, salt=self.salt)
            self.context.extend(self.token_ids)
        return self.context


@dataclass(frozen=True, slots=True)
class Decision:
    """A placement, and what it was decided on."""

    policy: PolicyName
    placement: Placement
    request: PlacementRequest
    request_class: RequestClass
    """By the estimate of what is cached."""


class Placer:
    """Decides where requests run and learns from what comes of it. In one event loop."""

    def __init__(self, settings: PlacementSettings, nodes: WeightNodes, clock: Clock) -> None:
        """Make a placer that knows no prompt and no session.

        Args:
            settings: the policy and the bounds of what is remembered.
            nodes: where requests can run.
            clock: for the age of sessions.
        """
        self._policy = settings.policy
        self._parameters = settings.parameters
        self._nodes = nodes
        self._prefixes = PrefixIndex(settings.prefix_keys)
        self._sessions = SessionTable(max_sessions=settings.sessions, ttl_s=settings.session_ttl, clock=clock)

    def decide(self, prompt: Prompt, *, num_output_tokens: int = 0, failed: Collection[str] = ()) -> Decision:
        """Decide where a prompt runs.

        Args:
            prompt: what is to run.
            num_output_tokens: generated before, elsewhere.
            failed: addresses that failed or refused it.
        """
        keys = prompt.keys(self._nodes.block_tokens())
        known = Known() if keys is None else self._prefixes.look(keys)
        pinned = known.address if prompt.session is None else self._sessions.address(prompt.session)
        request = PlacementRequest(
            num_prompt_tokens=len(prompt.token_ids) + num_output_tokens,
            num_cached_tokens=known.num_tokens,
            pinned=pinned,
            # Without names of blocks none finds what another computed; one with output goes on alone.
            beside=None if keys is None or num_output_tokens else prompt.begun_on,
        )
        placement = place(
            self._policy, request, self._nodes.views(), failed=failed, parameters=self._parameters
        )
        if not num_output_tokens:
            prompt.begun_on = placement.prefill
        return Decision(self._policy, placement, request, self.class_of(request.num_new_tokens))

    def class_of(self, num_new_tokens: int) -> RequestClass:
        """Return the class of a request with so many tokens to compute."""
        return self._parameters.bounds.of(num_new_tokens)

    def started(self, prompt: Prompt, *, address: str, num_cached_tokens: int) -> None:
        """Learn that a prompt's first token came.

        Args:
            prompt: what runs.
            address: of the node that goes on with it.
            num_cached_tokens: of the prompt, as the weight node told.
        """
        if prompt.context is not None:
            self._prefixes.correct(prompt.context, num_cached_tokens)
            self._prefixes.add(prompt.context, address)
        self._pin(prompt, address)

    def ended(self, prompt: Prompt, output: Sequence[int], *, address: str) -> None:
        """Learn what was generated after a prompt, on the node that did it last.

        Of several answers to a prompt the first that ends is remembered.
        """
        # The keys and values of the last token were never needed, and so never computed.
        if prompt.context is not None and not prompt.was_continued and len(output) > 1:
            prompt.was_continued = True
            prompt.context.extend(output[:-1])
            self._prefixes.add(prompt.context, address)
        self._pin(prompt, address)

    def _pin(self, prompt: Prompt, address: str) -> None:
        if prompt.session is not None:
            self._sessions.pin(prompt.session, address)

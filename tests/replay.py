"""`kernelflume bench` run against a served model, and how much of each prompt its cache can hold at most."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.stack import COMMAND

if TYPE_CHECKING:
    from tests.stack import Stack


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run of `kernelflume bench --save-detailed`."""

    result: dict[str, Any]
    requests: dict[tuple[str, int], dict[str, Any]]
    """Session and turn -> the request as the result tells it, with the times of sending and first token."""

    @property
    def answers(self) -> dict[tuple[str, int], list[int]]:
        """Token ids that were generated."""
        return {key: line["token_ids"] for key, line in self.requests.items()}

    @property
    def places(self) -> dict[str, set[str]]:
        """Session, its sub-agents included -> the weight nodes that its turns ran on."""
        places: dict[str, set[str]] = {}
        for (name, _), line in self.requests.items():
            places.setdefault(name.partition("/")[0], set()).add(line["node"])
        return places

    def findable(self, page_tokens: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the fewest and the most tokens that each request finds where nothing is evicted or lost.

        What a cache without an end would hold, but for what does not fill a block: whole blocks are found.
        What the first turns of several sessions have in common can be found once somebody has computed it:
        those that are sent before may find none of it.
        """
        known_s = min(line["first_token_s"] for line in self.requests.values())
        bounds = {}
        for (session, turn), line in self.requests.items():
            most = line["infinite_cache_tokens"] // page_tokens * page_tokens
            is_early = turn == 0 and line["sent_s"] < known_s
            bounds[session, turn] = (0 if is_early else most, most)
        return bounds


def replay(stack: Stack, *arguments: str, timeout_s: float) -> Replayed:
    """Replay a workload.

    Raises:
        AssertionError: a request failed, or was left out.
    """
    done = subprocess.run(
        [*COMMAND, "bench", *arguments, "--base-url", stack.url, "--json", "--save-detailed"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    requests = result["kernelflume"]["requests"]
    for line, sent_s, ttft_s in zip(requests, result["start_times"], result["ttfts"], strict=True):
        line |= {"sent_s": sent_s, "first_token_s": sent_s + ttft_s}
    return Replayed(result, {(line["session"], line["turn"]): line for line in requests})

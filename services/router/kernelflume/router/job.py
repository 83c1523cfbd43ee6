"""What one choice asks of weight nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.resumption import FROM_THE_START
from kernelflume.rpc.codec import resumption_to_proto, sampling_to_proto
from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    from kernelflume.core.resumption import Resumption
    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.router.placer import Prompt


@dataclass(frozen=True, slots=True)
class ChoiceJob:
    """A prompt to go on from, and how."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParameters
    tenant: str
    """Whom it is for."""

    def preparation(self) -> wnode_pb2.PrepareGrammarRequest | None:
        """Return what a weight node is asked before the choice moves there; None where it needs nothing."""
        if self.sampling.grammar is None:
            return None
        return wnode_pb2.PrepareGrammarRequest(sampling=sampling_to_proto(self.sampling), tenant=self.tenant)

    def request(
        self, num_runs_before: int = 0, resumption: Resumption = FROM_THE_START
    ) -> wnode_pb2.GenerateRequest:
        """Return what a weight node is asked to run, after what other runs generated, if there were any."""
        # A name of its own: a node that lost only its stream may not have ended the other run yet.
        run_id = f"{self.request_id}.{num_runs_before}" if num_runs_before else self.request_id
        return wnode_pb2.GenerateRequest(
            request_id=run_id,
            prompt_token_ids=self.prompt.token_ids,
            sampling=sampling_to_proto(self.sampling),
            cache_salt=self.prompt.salt,
            cache_retention=self.prompt.retention,
            resumption=resumption_to_proto(resumption),
            tenant=self.tenant,
        )

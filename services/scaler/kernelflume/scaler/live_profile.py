"""The performance profile in force: the file's, as nodes correct it, kept in the store over a failover."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.profile import PerformanceProfile
from kernelflume.scaler.refinement import Refinement, refine

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.table import Table
    from kernelflume.store.base import SettingStore

logger = logging.getLogger(__name__)

_NAME = "performance_profile"
KEEP_INTERVAL_S = 30.0
"""Shortest time between two writes. What was learnt in it is lost with the scaler, and learnt again."""


class LiveProfile:
    """Owner of the profile and of what refining it remembers. Used by the controller alone."""

    def __init__(
        self,
        of_file: PerformanceProfile | None,
        store: SettingStore,
        table: Table,
        clock: Clock,
        *,
        file_digest: str = "",
        geometry: KvGeometry | None = None,
        keep_interval_s: float = KEEP_INTERVAL_S,
    ) -> None:
        """Begin with the file's profile.

        Args:
            of_file: None without a file.
            store: keeps the refined one.
            table: knows the fencing token that guards the write.
            clock: for the interval.
            file_digest: of the file; a profile that was kept with another one is not taken up.
            geometry: the model's; without it no profile is begun.
            keep_interval_s: shortest time between two writes.
        """
        self._of_file = of_file
        self._store = store
        self._table = table
        self._clock = clock
        self._file_digest = file_digest
        self._geometry = geometry
        self._keep_interval_s = keep_interval_s
        self._refinement = Refinement(profile=of_file)
        self._kept = of_file
        self._kept_at_s = clock.now()

    @property
    def profile(self) -> PerformanceProfile | None:
        """The profile to decide with; None without a file until enough was measured."""
        return self._refinement.profile

    async def recall(self) -> None:
        """Take up what an earlier scaler learnt, unless the file has changed or it is of another model.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        text = await self._store.read_setting(_NAME)
        if text is None:
            return
        try:
            fields = json.loads(text)
            if fields["file"] != self._file_digest:
                logger.info("the profile file is another one: what was learnt before is not used")
                return
            profile = PerformanceProfile.from_dict(fields["profile"])
            self._check_model(profile)
        except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError) as error:
            logger.warning("the profile kept in the store cannot be used: %s", error)
            return
        self._refinement = Refinement(profile=profile)
        self._kept = profile
        logger.info("the performance profile of an earlier scaler is taken up")

    def refine(self, observation: Observation) -> PerformanceProfile | None:
        """Fold in what the leases say, and return the profile."""
        had_one = self.profile is not None
        self._refinement = refine(
            self._refinement, observation.weights, observation.attention.values(), self._geometry
        )
        if self.profile is not None and not had_one:
            logger.info(
                "a performance profile was begun from what the nodes measured: %s",
                json.dumps(self.profile.to_dict()),
            )
        return self.profile

    async def keep(self) -> None:
        """Write the profile if it has changed and the last write is long enough ago.

        Raises:
            ConflictError: another scaler leads. An unreachable store is tried again later.
        """
        now_s = self._clock.now()
        profile = self.profile
        if profile is None or profile == self._kept or now_s - self._kept_at_s < self._keep_interval_s:
            return
        self._kept_at_s = now_s
        text = json.dumps({"file": self._file_digest, "profile": profile.to_dict()})
        try:
            await self._store.write_setting(_NAME, text, fencing_token=self._table.fencing_token)
        except UnavailableError as error:
            logger.warning("what was learnt of the profile is not kept: %s", error)
        else:
            self._kept = profile

    def _check_model(self, profile: PerformanceProfile) -> None:
        known = self._of_file or self._geometry
        if known is None:
            raise ConfigurationError(
                "neither a profile file nor the geometry tells of which model it must be"
            )
        if (profile.model_id, profile.num_layers) != (known.model_id, known.num_layers):
            raise ConfigurationError(
                f"it is of {profile.model_id} with {profile.num_layers} layers, not of {known.model_id} with "
                f"{known.num_layers}"
            )

"""Where the scaling policy comes from: a file that is read again when it changes, or the admin API.

What was set last counts. A policy set over the API is kept in the store, with a digest of the file at that
time: a scaler that takes over, or starts again, goes on with it unless the file was edited since.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.runtime.smallfile import read_small_file
from kernelflume.scaler.providers.live import completed
from kernelflume.scaler.scaling_policy import ScalingPolicy

if TYPE_CHECKING:
    from kernelflume.scaler.settings import ScalerSettings
    from kernelflume.store.base import SettingStore

logger = logging.getLogger(__name__)

_NAME = "scaling_policy"

MANUAL = ScalingPolicy(automatic=False)
"""Without a file the number of nodes is a person's to choose."""


class PolicySource:
    """The policy in force, where it is from, and the settings that follow from it. One event loop."""

    def __init__(self, own: ScalerSettings, store: SettingStore) -> None:
        """Read the policy file, if the scaler's settings name one.

        Raises:
            ConfigurationError: it cannot be read, is no policy, or does not go with those settings.
        """
        path = self._path = own.policy_file
        self._own = own
        self._store = store
        self._text = ""
        self._fault = ""
        self.policy = MANUAL
        self.origin = "default"
        """default, api, or the file's path."""
        self.settings = own
        """The scaler's own, with what the policy's provider section gives in their place."""
        if path is not None:
            try:
                self._text = read_small_file(path)
                self.policy = ScalingPolicy.parse(self._text)
                self.settings = completed(own, self.policy.provider)
            except (ConfigurationError, InvalidRequestError) as error:
                raise ConfigurationError(f"policy-file: {path}: {error}") from error
            self.origin = str(path)

    async def recall(self) -> ScalingPolicy:
        """Take up the policy that the API set, unless the file was edited since; return what is in force.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        kept = await self._store.read_setting(_NAME)
        if kept is not None:
            try:
                fields = json.loads(kept)
                if fields["file"] == self._digest():
                    self._put(*self._parsed(fields["policy"]), origin="api")
            except (ValueError, KeyError, TypeError, RecursionError, InvalidRequestError) as error:
                logger.warning("the policy kept in the store cannot be used: %s", error)
        return self.policy

    async def set(self, text: str, *, fencing_token: int | None) -> ScalingPolicy:
        """Put a policy in force and keep it.

        Raises:
            InvalidRequestError: it is no policy, or would change what a running scaler keeps; the present one
                stays.
            UnavailableError: it could not be kept; the present one stays.
            ConflictError: another scaler leads.
        """
        policy, settings = self._parsed(text)
        kept = json.dumps({"policy": text, "file": self._digest()})
        await self._store.write_setting(_NAME, kept, fencing_token=fencing_token)
        self._put(policy, settings, origin="api")
        return policy

    def look(self) -> ScalingPolicy | None:
        """Return the file's policy if it was edited; a bad edit is reported once and changes nothing."""
        if self._path is None:
            return None
        try:
            text = read_small_file(self._path)
            if text == self._text:
                self._fault = ""
                return None
            policy, settings = self._parsed(text)
        except Exception as error:
            # Whoever runs this must not end for a file: attention nodes may be its children.
            if str(error) != self._fault:
                self._fault = str(error)
                expected = isinstance(error, ConfigurationError | InvalidRequestError)
                logger.warning(
                    "%s is not used, the policy stays as it was: %s",
                    self._path,
                    error,
                    exc_info=None if expected else error,
                )
            return None
        self._text, self._fault = text, ""
        self._put(policy, settings, origin=str(self._path))
        return policy

    def _parsed(self, text: str) -> tuple[ScalingPolicy, ScalerSettings]:
        policy = ScalingPolicy.parse(text)
        return policy, completed(self._own, policy.provider, present=self.settings)

    def _put(self, policy: ScalingPolicy, settings: ScalerSettings, *, origin: str) -> None:
        self.policy, self.settings, self.origin = policy, settings, origin

    def _digest(self) -> str:
        return hashlib.sha256(self._text.encode()).hexdigest()

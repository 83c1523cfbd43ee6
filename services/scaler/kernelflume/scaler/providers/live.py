"""The settings that a provider works with: the scaler's own, and over them what the scaling policy gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from kernelflume.core.errors import InvalidRequestError
from kernelflume.scaler.providers.settings import KubernetesSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.providers.settings import ProviderSection
    from kernelflume.scaler.settings import ScalerSettings

G = TypeVar("G", bound=BaseModel)

_NAMES = {
    "kind": "provider",
    "standby_nodes": "standby_attention_nodes",
    "node_memory": "attention_node_memory",
    "node_threads": "attention_node_threads",
}
"""Settings of the section -> those of the scaler that they stand for."""
_FIXED = {
    "ray": ("address", "namespace", "lifetime"),
    "kubernetes": tuple(KubernetesSettings.model_fields),
}
"""Provider -> settings of its group that say where its nodes are: a running scaler keeps them."""


class LiveSettings:
    """The settings in force; what a node is started with is read at its start. One event loop."""

    def __init__(self, present: ScalerSettings) -> None:
        self.present = present
        self._listeners: list[Callable[[ScalerSettings], None]] = []

    def on_change(self, listener: Callable[[ScalerSettings], None]) -> None:
        """Have ``listener`` told of every change."""
        self._listeners.append(listener)

    def put(self, settings: ScalerSettings) -> None:
        """Put settings in force that ``completed`` returned."""
        if settings != self.present:
            self.present = settings
            for listener in self._listeners:
                listener(settings)


def completed(
    own: ScalerSettings, section: ProviderSection, *, present: ScalerSettings | None = None
) -> ScalerSettings:
    """Return the scaler's own settings with what the policy's section gives in their place.

    Args:
        own: as flags, environment and file of the scaler gave them.
        section: of the scaling policy.
        present: what a running scaler works with; None while it starts.

    Raises:
        InvalidRequestError: the settings do not go together, or one differs that cannot be changed while the
            scaler runs.
    """
    given = {name: value for key, name in _NAMES.items() if (value := getattr(section, key)) is not None} | {
        "ray": _over(own.ray, section.ray),
        "kubernetes": _over(own.kubernetes, section.kubernetes),
    }
    settings = own.model_copy(update=given)
    try:
        settings.check()
    except ValueError as error:
        raise InvalidRequestError(f"policy: provider: {error}", parameter="policy") from error
    if present is not None:
        _refuse_fixed(present, settings)
    return settings


def _over(group: G, given: G) -> G:
    return group.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})


def _refuse_fixed(present: ScalerSettings, wanted: ScalerSettings) -> None:
    if wanted.provider != present.provider:
        raise _fixed("kind", present.provider, wanted.provider)
    for name in _FIXED.get(present.provider, ()):
        before = getattr(getattr(present, present.provider), name)
        after = getattr(getattr(wanted, present.provider), name)
        if after != before:
            raise _fixed(f"{present.provider}.{name}", before, after)


def _fixed(name: str, before: object, after: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"policy: provider.{name}: cannot be changed from {before} to {after} while the scaler runs, for the "
        "nodes that are there depend on it: restart the scaler with it",
        parameter="policy",
    )

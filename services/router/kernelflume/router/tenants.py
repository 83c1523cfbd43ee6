"""Who a request is from: the key it came with, or everybody where there are no keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.core.apikeys import KeyLimits

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from kernelflume.core.apikeys import ApiKey

_STATE_NAME = "kernelflume.tenant"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One that limits and fairness are counted for."""

    tenant_id: str
    name: str
    weight: float = 1.0
    limits: KeyLimits = field(default_factory=KeyLimits)

    @classmethod
    def of_key(cls, key: ApiKey, defaults: KeyLimits) -> Tenant:
        """Return the tenant of a key, with the default limits where it has none of its own."""
        return cls(key.key_id, key.name, key.weight, key.limits.over(defaults))

    def cache_salt(self, own: str | None) -> str:
        """Return what keeps this tenant's keys and values from others'.

        Args:
            own: by which the tenant keeps requests of its own apart, if it does.
        """
        if self is EVERYBODY:
            return f":{own}" if own else ""  # begins like no tenant's
        return f"{len(self.tenant_id)}:{self.tenant_id}{own or ''}"  # no other id and salt make this

    def attach(self, scope: MutableMapping[str, Any]) -> None:
        """Note in a request's ASGI scope that it is from this tenant."""
        scope.setdefault("state", {})[_STATE_NAME] = self


EVERYBODY = Tenant("everybody", "everybody")
"""Where no keys are asked for."""


def tenant_of(scope: MutableMapping[str, Any]) -> Tenant:
    """Return whom a request is from."""
    tenant: Tenant = scope.get("state", {}).get(_STATE_NAME, EVERYBODY)
    return tenant

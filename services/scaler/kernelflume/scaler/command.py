"""The command line of an attention node that the process provider starts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.scaler.settings import ScalerSettings


def attention_node_command(settings: ScalerSettings, node_id: str, address: str) -> list[str]:
    """Return how ``node_id`` is started so that it serves at ``address`` (host:port)."""
    command = [
        *(settings.attention_node_command or [sys.executable, "-m", "kernelflume.anode"]),
        "--node-id",
        node_id,
        "--address",
        address,
        "--redis-url",
        settings.redis_url,
        "--cluster",
        settings.cluster,
        "--memory",
        str(settings.attention_node_memory),
        "--geometry",
        settings.geometry,
        "--transport-error-handling",
        settings.transport_error_handling,
        "--log-level",
        settings.log_level,
        "--exit-with-parent",
    ]
    if settings.attention_node_threads:
        command += ["--threads", str(settings.attention_node_threads)]
    # They listen on this machine, so with this service's certificate; their traces go the same way.
    return [*command, *settings.tls.flags(), *settings.tracing.flags(), *settings.attention_node_args]

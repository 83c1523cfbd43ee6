"""The command lines of nodes that are started from here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.scaler.providers.ray.host import Place
    from kernelflume.scaler.settings import ScalerSettings
    from kernelflume.scaler.weight_host_settings import WeightHostSettings

FORK_SERVER_COMMAND = (sys.executable, "-m", "kernelflume.anode.forkserver")
"""Takes the descriptor of its connection; what it forks takes ``attention_node_arguments``."""
_LOCAL_ADDRESS = "127.0.0.1:0"
"""Each node picks a free port and tells it with its lease."""


def attention_node_command(settings: ScalerSettings, node_id: str) -> list[str]:
    """Return how ``node_id`` is started on this machine."""
    return [*_program(settings, sys.executable), *attention_node_arguments(settings, node_id)]


def attention_node_arguments(settings: ScalerSettings, node_id: str) -> list[str]:
    """Return the same without the program."""
    own = ("--threads", str(settings.attention_node_threads)) if settings.attention_node_threads else ()
    return _arguments(settings, node_id, _LOCAL_ADDRESS, own)


def device_of(node_id: str, devices: Sequence[str]) -> str:
    """Return the device that a node gets in turn, by the number in its id; empty without devices."""
    if not devices:
        return ""
    number = node_id.rpartition("-")[2]
    return devices[(int(number) - 1) % len(devices)] if number.isdecimal() else devices[0]


def ray_node_command(settings: ScalerSettings, node_id: str, place: Place) -> list[str]:
    """Return how ``node_id`` is started on a Ray node, where it serves at an address that others reach.

    It computes with as many threads as Ray gave it CPUs.
    """
    threads = settings.attention_node_threads or int(settings.ray.num_cpus)
    own = ["--doorbell-host", place.host, *(("--threads", str(threads)) if threads else ())]
    return [*_program(settings, place.python), *_arguments(settings, node_id, f"{place.host}:0", own)]


def weight_node_command(settings: WeightHostSettings, place: Place) -> list[str]:
    """Return how the weight node is started on a Ray node, with as many threads as Ray gave it CPUs.

    It picks a free port there and tells it with its lease.
    """
    return [
        *(settings.weight_node_command or [place.python, "-m", "kernelflume.wnode"]),
        *("--node-id", settings.node_id),
        *("--model", settings.model),
        *("--address", f"{place.host}:0"),
        *("--doorbell-host", place.host),
        *("--redis-url", settings.redis_url),
        *("--cluster", settings.cluster),
        *("--threads", str(int(settings.ray.num_cpus))),
        *("--log-level", settings.log_level),
        "--exit-with-parent",
        *settings.tls.flags(),
        *settings.tracing.flags(),
        *settings.weight_node_args,
    ]


def _program(settings: ScalerSettings, python: str) -> list[str]:
    return settings.attention_node_command or [python, "-m", "kernelflume.anode"]


def _arguments(settings: ScalerSettings, node_id: str, address: str, more: Sequence[str]) -> list[str]:
    return [
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
        *(("--device", device) if (device := device_of(node_id, settings.attention_node_devices)) else ()),
        *more,
        # This service's certificate, or the one of that path on the node's machine; traces go the same way.
        *settings.tls.flags(),
        *settings.tracing.flags(),
        *settings.attention_node_args,
    ]

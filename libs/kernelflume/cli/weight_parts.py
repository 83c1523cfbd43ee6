"""The weight nodes of a local stack: as processes here, or as actors of a Ray cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kernelflume.cli.parts import CPU, PartSpec, Probe, member_address, service
from kernelflume.core.roles import WeightNodeRole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelflume.cli.stack import StackOptions
    from kernelflume.cli.threads import ThreadBudget


def weight_node_parts(
    options: StackOptions,
    *,
    checkpoint: Path,
    ports: Sequence[int],
    threads: ThreadBudget,
    redis_url: str,
    weight_bytes: int,
    model: Sequence[str],
    common: Sequence[str],
) -> tuple[PartSpec, ...]:
    """Return the part of each weight node. Where there are several, one that ends is started again.

    Args:
        options: what was asked for.
        checkpoint: folder of the model.
        ports: where each listens, unless Ray puts it somewhere.
        threads: kernel threads of each.
        redis_url: the store, where those on Ray tell their addresses.
        weight_bytes: size of the weights in memory, which one on Ray asks for.
        model: flags about the model.
        common: flags that every service gets.
    """
    parts = []
    for index, role in enumerate(options.weight_node_roles):
        number = index + 1
        device = options.devices[index % len(options.devices)]
        own = (
            *(("--role", role) if role is not WeightNodeRole.BOTH else ()),
            *(("--device", device) if device != CPU else ()),
            *(("--admin-token-file", str(options.admin_token_file)) if options.admin_token_file else ()),
        )
        if options.weight_node_provider == "ray":
            part = _on_ray(
                options,
                number,
                checkpoint=checkpoint,
                redis_url=redis_url,
                weight_bytes=weight_bytes,
                model=(*own, *model),
                common=common,
            )
        else:
            part = _local(
                options,
                number,
                checkpoint=checkpoint,
                address=f"{options.node_host}:{ports[index]}",
                threads=threads,
                flags=(*own, *model, *common),
            )
        parts.append(part)
    return tuple(parts)


def _node_id(number: int) -> str:
    return f"w-{number}"


def _name(options: StackOptions, number: int) -> str:
    return "wnode" if options.num_weight_nodes == 1 else f"wnode-{number}"


def _title(options: StackOptions, number: int) -> str:
    if options.num_weight_nodes == 1:
        return "weight node"
    role = options.weight_node_roles[number - 1]
    return f"weight node {_node_id(number)}{'' if role is WeightNodeRole.BOTH else f' ({role})'}"


def _local(
    options: StackOptions,
    number: int,
    *,
    checkpoint: Path,
    address: str,
    threads: ThreadBudget,
    flags: Sequence[str],
) -> PartSpec:
    return PartSpec(
        name=_name(options, number),
        title=_title(options, number),
        command=service(
            "wnode",
            *("--node-id", _node_id(number)),
            *("--address", address),
            *("--doorbell-host", options.node_host),
            *("--model", str(checkpoint)),
            *("--threads", str(threads.weight_node)),
            *("--threads-beside-attention", str(threads.weight_node_beside_attention)),
            *flags,
        ),
        probes=((Probe.GRPC, address), (Probe.CONNECTED, address)),
        is_replaceable=options.num_weight_nodes > 1,
    )


def _on_ray(
    options: StackOptions,
    number: int,
    *,
    checkpoint: Path,
    redis_url: str,
    weight_bytes: int,
    model: Sequence[str],
    common: Sequence[str],
) -> PartSpec:
    return PartSpec(
        name=_name(options, number),
        title=f"{_title(options, number)} on Ray",
        command=service(
            "scaler.weight_host",
            *("--node-id", _node_id(number)),
            *("--ray.address", options.ray_address),
            *("--ray.num-cpus", f"{options.weight_node_cpus:g}"),
            *("--ray.resources", options.weight_node_resources),
            *("--memory", str(weight_bytes)),
            *("--model", str(checkpoint)),
            *("--log-dir", str(options.log_dir)),
            # As one JSON list: commas would divide a name.
            *("--weight-node-args", json.dumps(model)),
            *common,
        ),
        # Where it serves is known once Ray has put it somewhere.
        probes=((Probe.MEMBER, member_address(_node_id(number), redis_url)),),
        # It ends the weight node first, then leaves the Ray cluster.
        stop_grace_s=20.0,
        is_replaceable=options.num_weight_nodes > 1,
    )

"""Runs a stack of an embedded store and stub services as `kernelflume serve` would run the real one.

Run as a program with one JSON argument: ``{"log_dir": ..., "ports": [4 ports], "behaviours": {name: [...]},
"start_timeout_s": ..., "only": [names], "replaceable": [names]}``; all but "log_dir" and "ports" may be left
out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.parts import PartSpec, Probe
from kernelflume.cli.run import run_stages
from kernelflume.cli.stack import StackOptions
from kernelflume.store.embedded import embedded_command

STUB = str(Path(__file__).with_name("stub_service.py"))


def stub(name: str, kind: str, port: int, probes: tuple[Probe, ...], task: dict[str, Any]) -> PartSpec:
    address = f"http://127.0.0.1:{port}" if kind == "http" else f"127.0.0.1:{port}"
    return PartSpec(
        name=name,
        title=name,
        command=(sys.executable, STUB, kind, str(port), *task.get("behaviours", {}).get(name, ())),
        probes=tuple((probe, address) for probe in probes),
        stop_grace_s=task.get("grace_s", 10.0),
        is_replaceable=name in task.get("replaceable", ()),
    )


def main() -> None:
    task = json.loads(sys.argv[1])
    log_dir = Path(task["log_dir"])
    redis_port, scaler_port, weight_node_port, router_port = task["ports"]
    options = StackOptions(
        model="stub",
        served_model_names=(),
        num_attention_nodes=2,
        attention_node_memory_bytes=1,
        host="127.0.0.1",
        port=router_port,
        scaler_port=scaler_port,
        dtype="auto",
        max_model_len=None,
        redis_url=None,
        cluster="test",
        seed=0,
        transport_error_handling="peer",
        log_level="info",
        log_dir=log_dir,
    )
    redis = PartSpec(
        name="redis",
        title="store",
        command=tuple(embedded_command(redis_port, log_dir)),
        probes=((Probe.STORE, f"redis://127.0.0.1:{redis_port}/0"),),
    )
    services = [
        stub("scaler", "scaler", scaler_port, (Probe.GRPC, Probe.TOPOLOGY), task),
        stub("wnode", "grpc", weight_node_port, (Probe.GRPC, Probe.CONNECTED), task),
        stub("router", "http", router_port, (Probe.HTTP,), task),
    ]
    if "only" in task:
        services = [service for service in services if service.name in task["only"]]
    with errors_as_exit():
        asyncio.run(
            run_stages(
                options,
                ((redis,), services),
                start_timeout_s=task.get("start_timeout_s", 120.0),
                out=Console(),
                err=Console(stderr=True),
            )
        )


if __name__ == "__main__":
    main()

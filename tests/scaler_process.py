"""A scaler as a process, whose attention nodes are ``tests/fake_anode.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernelflume.core.geometry import KvGeometry
from kernelflume.core.leases import NodeKind
from tests.scaler_rig import CLUSTER, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.store.redis import RedisStore

FAKE_ANODE = Path(__file__).with_name("fake_anode.py")
TAKEN_OVER = ("--leader-ttl-s", "5")
"""For a leader that dies, and for whoever takes over from it: as soon as a busy machine allows."""
GEOMETRY = KvGeometry(
    model_id="m",
    model_revision="r",
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    dtype="float32",
    kv_dtype="float32",
)


def write_anew(path: Path, text: str) -> None:
    """Replace a file that somebody watches, who never sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@contextmanager
def running_scaler(url: str, log_dir: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scaler for the length of the block; its log is ``log_dir/scaler.log``.

    It keeps the lead however busy the machine is: where another one is to take over, set ``--leader-ttl-s``.
    """
    log_dir.mkdir(exist_ok=True)
    with (log_dir / "scaler.log").open("ab") as log:
        command = [
            *(sys.executable, "-m", "kernelflume.scaler", "--redis-url", url, "--cluster", CLUSTER),
            *("--address", "127.0.0.1:0", "--geometry", json.dumps(GEOMETRY.to_dict())),
            *("--log-dir", str(log_dir), "--lost-grace-s", "0.5", "--leader-ttl-s", "60"),
            *("--attention-node-command", sys.executable, "--attention-node-command", str(FAKE_ANODE)),
            *flags,
        ]
        scaler = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield scaler
    finally:
        scaler.kill()
        scaler.wait()


async def address_of(store: RedisStore, node_id: str = "s-1") -> str:
    """Wait for a scaler's lease and return where it listens."""

    async def present() -> bool:
        return any(record.node_id == node_id for record in await store.living(NodeKind.SCALER))

    await eventually(present)
    return next(record.address for record in await store.living(NodeKind.SCALER) if record.node_id == node_id)


async def active_nodes(store: RedisStore, count: int) -> list[str]:
    """Wait until just ``count`` nodes are in the table, all active, and return their names."""

    async def reached() -> bool:
        return [node.state for node in (await store.read()).nodes] == ["active"] * count

    await eventually(reached)
    return [node.node_id for node in (await store.read()).nodes]

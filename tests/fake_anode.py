"""A process that looks like an attention node to a scaler: it takes a lease and answers health checks.

It understands the flags that providers pass, and some that make it misbehave.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.rpc.server import Server
from kernelflume.runtime.service import new_incarnation
from kernelflume.runtime.tether import tether_to_parent
from kernelflume.runtime.tls import TlsSettings
from kernelflume.store.redis import RedisStore


async def serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tls = TlsSettings(certificate=options.certificate, key=options.key, ca=options.ca)
    server = Server(options.address, [], tls=tls.open())
    await server.start()
    await server.set_serving(serving=True)
    record = LeaseRecord(
        kind=NodeKind.ATTENTION,
        node_id=options.node_id,
        incarnation=new_incarnation(),
        address=f"{options.address.rpartition(':')[0]}:{server.port}",
        load=NodeLoad(capacity_tokens=1000),
    )
    store = RedisStore(options.redis_url, cluster=options.cluster, timeout_s=60.0)
    if options.idle:
        await stop.wait()
    while not stop.is_set():
        await store.renew(record, ttl_s=60.0)
        try:
            async with asyncio.timeout(0.2):
                await stop.wait()
        except TimeoutError:
            pass
    await store.release(record.kind, record.node_id, record.incarnation)
    await store.close()
    await server.stop(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--exit-with-parent", action="store_true")
    parser.add_argument("--fail", help="say this and exit with code 3")
    parser.add_argument("--idle", action="store_true", help="take no lease")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    for name in ("certificate", "key", "ca"):
        parser.add_argument(f"--tls.{name}", dest=name)
    options, _ = parser.parse_known_args()
    if options.fail:
        sys.stderr.write(f"starting\n{options.fail}\n")
        sys.exit(3)
    if options.exit_with_parent:
        tether_to_parent()
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()

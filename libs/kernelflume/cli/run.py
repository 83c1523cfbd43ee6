"""Running a planned stack until it is told to end."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from kernelflume.cli.parts import LOCALHOST
from kernelflume.cli.progress import reporter_for
from kernelflume.cli.readiness import Readiness
from kernelflume.cli.stack import base_url
from kernelflume.cli.supervisor import Supervisor, adopt_orphans
from kernelflume.rpc.channel import PLAINTEXT
from kernelflume.runtime.clock import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kernelflume.cli.parts import PartSpec
    from kernelflume.cli.stack import StackOptions
    from kernelflume.rpc.channel import Channels


async def run_stages(
    options: StackOptions,
    stages: Sequence[Sequence[PartSpec]],
    *,
    start_timeout_s: float,
    channels: Channels = PLAINTEXT,
    out: Console,
    err: Console,
) -> None:
    """Start the parts, say once that all are ready, and watch them until SIGINT, SIGTERM or SIGHUP.

    Args:
        options: what was planned from.
        stages: the parts; a stage starts when the one before is ready.
        start_timeout_s: bound of the start, from the first process until all are ready.
        channels: how the parts are asked whether they are ready.
        out: gets the one ready line.
        err: gets progress.

    Raises:
        UnavailableError: a part ended; everything was ended.
        DeadlineError: the start took too long; everything was ended.
        StackInterruptedError: told to end before it was ready; everything was ended.
    """
    adopt_orphans()
    readiness = Readiness(
        cluster=options.cluster, num_attention_nodes=options.num_attention_nodes, channels=channels
    )
    supervisor = Supervisor(
        log_dir=options.log_dir,
        readiness=readiness,
        clock=MonotonicClock(),
        tell=lambda text: err.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.ask_stop)
    try:
        with reporter_for(err) as reporter:
            await supervisor.start(stages, reporter, timeout_s=start_timeout_s)
        out.print(ready_line(options), markup=False, highlight=False, soft_wrap=True)
        await supervisor.wait_end()
    finally:
        err.print("stopping ...", highlight=False)
        await supervisor.stop()
        await readiness.close()


def ready_line(options: StackOptions) -> str:
    """Return the one line that says where the stack listens."""
    names = ", ".join(options.served_model_names or (options.model,))
    return (
        f"ready: {base_url(options.host, options.port)} serves {names} "
        f"(scaler {LOCALHOST}:{options.scaler_port}, logs {options.log_dir})"
    )

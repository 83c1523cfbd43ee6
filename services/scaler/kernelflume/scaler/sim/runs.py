"""Runs of many configurations on all cores: processes, as a simulation is arithmetic from end to end."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from kernelflume.scaler.sim.report import describe
from kernelflume.scaler.sim.simulation import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kernelflume.scaler.sim.config import SimulationConfig
    from kernelflume.scaler.sim.result import Result

_Ran = TypeVar("_Ran")


def run_many(
    configs: Sequence[SimulationConfig],
    folder: Path,
    *,
    num_processes: int,
    task: Callable[[SimulationConfig, Path], _Ran],
) -> Iterator[_Ran]:
    """Run each configuration; yield what comes of them in their order.

    Args:
        configs: what to run.
        folder: that their paths are relative to.
        num_processes: to run them in; with 1 they run in this one.
        task: runs one configuration, as ``run_one`` does; a function of a module.

    Raises:
        ConfigurationError: one of them does not fit its hardware, or a file of it cannot be read.
    """
    num_processes = min(num_processes, len(configs))
    if num_processes <= 1:
        for config in configs:
            yield task(config, folder)
        return
    # Forked from a process without threads: not from this one, which shows progress.
    with ProcessPoolExecutor(num_processes, mp_context=get_context("forkserver")) as executor:
        futures = [executor.submit(task, config, folder) for config in configs]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def run_one(config: SimulationConfig, folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """Run every strategy of one configuration; return what it rests on, and the results."""
    simulator = Simulator(config, folder)
    return describe(simulator), [simulator.run(strategy) for strategy in config.strategies]


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))

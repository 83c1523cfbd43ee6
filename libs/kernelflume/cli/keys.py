"""`kernelflume keys`: make, list and revoke API keys of the router."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.keyfile import KeyFile
from kernelflume.cli.options import utf8
from kernelflume.cli.output import output_console
from kernelflume.core.apikeys import KeyLimits, load_stored, new_key
from kernelflume.core.errors import ConfigurationError, NotFoundError
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.core.apikeys import ApiKey

_SECRET_BYTES = 32
_ID_BYTES = 6

keys_commands = typer.Typer(
    help="Make, list or revoke API keys of the router, in a file or in the routing-table store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FileOption = Annotated[
    Path | None,
    typer.Option("--file", envvar="KERNELFLUME_KEYS_FILE", help="File of keys; made if it is not there."),
]
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url", envvar="KERNELFLUME_KEYS_REDIS_URL", help="Routing-table store that holds the keys."
    ),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", callback=utf8, help="Prefix of every key in the store.")
]


@keys_commands.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is.", callback=utf8, show_default=False)],
    *,
    file: FileOption = None,
    redis_url: RedisOption = None,
    cluster: ClusterOption = "kernelflume",
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="[default: the router's]")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Prompt and generated tokens. [default: the router's]")
    ] = None,
    concurrent_requests: Annotated[int | None, typer.Option(min=1, help="[default: the router's]")] = None,
    weight: Annotated[
        float, typer.Option(min=0.001, help="Share of the service while requests wait, beside other keys'.")
    ] = 1.0,
) -> None:
    """Make a key and print it, alone on standard output. It is shown this once: only a hash of it is kept."""
    with errors_as_exit():
        text, key = new_key(
            name,
            key_id=secrets.token_hex(_ID_BYTES),
            secret=secrets.token_urlsafe(_SECRET_BYTES),
            created_at=int(time.time()),
            weight=weight,
            limits=KeyLimits(
                requests_per_minute=requests_per_minute,
                tokens_per_minute=tokens_per_minute,
                concurrent_requests=concurrent_requests,
            ),
        )
        match _place(file, redis_url):
            case Path() as path:
                with closing(KeyFile(path)) as opened:
                    opened.write([*opened.read(), key])
            case url:
                _with_store(
                    url, cluster, lambda store: store.put_api_key(key.key_id, json.dumps(key.to_dict()))
                )
    typer.echo(f"key {key.key_id} of {key.name}; it is not shown again:", err=True)
    typer.echo(text)


@keys_commands.command(name="list")
def list_keys(
    *,
    file: FileOption = None,
    redis_url: RedisOption = None,
    cluster: ClusterOption = "kernelflume",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List keys with their limits. Neither keys nor hashes are shown."""
    with errors_as_exit():
        match _place(file, redis_url):
            case Path() as path:
                with closing(KeyFile(path)) as opened:
                    keys = opened.read()
            case url:
                keys = load_stored(_with_store(url, cluster, lambda store: store.read_api_keys()))
    if as_json:
        typer.echo(json.dumps([_shown(key) for key in keys], indent=2))
    else:
        output_console().print(_table(keys))


@keys_commands.command()
def revoke(
    key_id: Annotated[
        str, typer.Argument(help="Id of the key, as listed.", callback=utf8, show_default=False)
    ],
    *,
    file: FileOption = None,
    redis_url: RedisOption = None,
    cluster: ClusterOption = "kernelflume",
) -> None:
    """Take a key back; routers notice within a second. Requests that run already are not ended."""
    with errors_as_exit():
        match _place(file, redis_url):
            case Path() as path:
                with closing(KeyFile(path)) as opened:
                    keys = opened.read()
                    left = [key for key in keys if key.key_id != key_id]
                    was_there = len(left) < len(keys)
                    if was_there:
                        opened.write(left)
            case url:
                was_there = _with_store(url, cluster, lambda store: store.drop_api_key(key_id))
        if not was_there:
            raise NotFoundError(f"there is no key {key_id}")
    typer.echo(f"key {key_id} is revoked")


def _place(file: Path | None, redis_url: str | None) -> Path | str:
    if file is not None and redis_url is not None:
        raise ConfigurationError("--file and --redis-url are two places for keys; give one")
    place = file or redis_url
    if place is None:
        raise ConfigurationError("say where the keys are: --file or --redis-url")
    return place


def _with_store(url: str, cluster: str, use: Callable[[RedisStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = RedisStore(url, cluster=cluster)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _shown(key: ApiKey) -> dict[str, Any]:
    return {name: value for name, value in key.to_dict().items() if name != "secret_sha256"}


def _table(keys: list[ApiKey]) -> Table:
    table = Table("id", "name", "made", "requests/min", "tokens/min", "concurrent", "weight", box=None)
    for key in keys:
        made = datetime.fromtimestamp(key.created_at, UTC).strftime("%Y-%m-%d %H:%M")
        limits = (
            key.limits.requests_per_minute,
            key.limits.tokens_per_minute,
            key.limits.concurrent_requests,
        )
        shown = ["-" if limit is None else str(limit) for limit in limits]
        table.add_row(key.key_id, key.name, made, *shown, f"{key.weight:g}")
    return table

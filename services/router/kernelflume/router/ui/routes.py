"""HTTP routes of the live page: its files, a snapshot of the state, and a stream of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations at run time

from kernelflume.router.streaming import EventStreamResponse
from kernelflume.router.ui.files import HEADERS, PageFile, read_files

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kernelflume.router.ui.collector import Collector
    from kernelflume.runtime.clock import Clock

STATE_PATH = "/ui/api/state"
EVENTS_PATH = "/ui/api/events"
_NOT_STORED = {"Cache-Control": "no-store"}


def ui_routes(
    collector: Collector, *, write_timeout_s: float, slow_reader_timeout_s: float, clock: Clock
) -> APIRouter:
    """Return the routes.

    Args:
        collector: knows the state.
        write_timeout_s: bound of one wait for a viewer that does not read.
        slow_reader_timeout_s: bound of all such waits together.
        clock: for these waits.
    """
    # For the page alone: what it is sent changes with it, and is no part of the API.
    routes = APIRouter(include_in_schema=False)

    @routes.get("/ui")
    async def find_page() -> Response:
        """Lead to the page; relative, so that it works below any prefix."""
        return RedirectResponse("ui/", status_code=307)

    for path, file in read_files().items():
        routes.add_api_route(path, partial(_answer_file, file), methods=["GET", "HEAD"])

    @routes.get(STATE_PATH)
    async def show_state() -> Response:
        """Return the whole state."""
        return JSONResponse(await collector.state(), headers=_NOT_STORED)

    @routes.get(EVENTS_PATH)
    async def stream_state() -> Response:
        """Stream the sections of the state as they change."""
        collector.enter()
        return EventStreamResponse(
            _events(collector),
            write_timeout_s=write_timeout_s,
            slow_reader_timeout_s=slow_reader_timeout_s,
            clock=clock,
            headers={},
            on_close=collector.leave,
            on_disconnect=_ignore,
        )

    return routes


async def _answer_file(file: PageFile, request: Request) -> Response:
    headers = HEADERS | {"ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


async def _events(collector: Collector) -> AsyncGenerator[str, None]:
    async for at, news in collector.watch():
        # The time comes with every look: a viewer sees by it that the stream lives.
        yield "".join(
            f"event: {name}\ndata: {text}\n\n" for name, text in (*news.items(), ("clock", f"{at:.3f}"))
        )


def _ignore() -> None:
    """A viewer that goes away is the usual end."""

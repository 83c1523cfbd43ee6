"""The live page over HTTP: its files, the snapshot, the stream, and what happens when parts are away."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import eventually, router, saying, weight_node, write_model
from tests.topology import topology
from tests.ui_cluster import LETTER, ui_cluster
from typer.testing import CliRunner

from kernelflume.cli.main import app as command_line
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.router.ui.files import page_paths
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.ui_cluster import UiCluster
    from tests.valkey import ValkeyProcess

    from kernelflume.store.redis import RedisStore


class TellingScaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Tells the topology that stands in a test's tables."""

    async def GetTopology(self, request: Any, context: Any) -> scaler_pb2.Topology:  # noqa: N802
        return topology()


@asynccontextmanager
async def scaler(store: RedisStore) -> AsyncIterator[None]:
    server = Server("127.0.0.1:0", ["kernelflume.rpc.v1.ScalerAdmin"])
    scaler_pb2_grpc.add_ScalerAdminServicer_to_server(TellingScaler(), server.grpc_server)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    record = LeaseRecord(kind=NodeKind.SCALER, node_id="s-1", incarnation="1", address=address)
    await store.renew(record, ttl_s=600)
    try:
        yield
    finally:
        await server.stop(0)


@asynccontextmanager
async def cluster(
    folder: Path, valkey: ValkeyProcess, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, UiCluster]]:
    async with (
        ui_cluster(folder, valkey, **settings) as parts,
        httpx.AsyncClient(base_url=parts.url, timeout=30) as client,
    ):
        yield client, parts


async def sections(lines: AsyncIterator[str], *, until: str = "clock") -> dict[str, Any]:
    """Return the sections of a stream up to and with one of a name."""
    found: dict[str, Any] = {}
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found[name] = json.loads(line.removeprefix("data: "))
            if name == until:
                return found
    raise AssertionError("the stream ended")


@pytest.mark.redis
async def test_the_snapshot_and_the_stream_show_what_store_weight_nodes_and_scaler_know(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with cluster(tmp_path, valkey) as (client, parts), scaler(parts.store):
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        answer = await client.get("/ui/api/state")
        assert answer.headers["cache-control"] == "no-store"
        state = answer.json()
        assert [(node["id"], node["state"]) for node in state["attention"]["nodes"]][:2] == [
            ("a-1", "active"),
            ("a-2", "draining"),
        ]
        assert [(node["id"], node["trouble"]) for node in state["weight"]["nodes"]] == [("w-1", None)]
        [shown] = state["sequences"]["sequences"]
        assert (shown["id"], shown["ranges"]) == ("w-1/41", [["a-1", 0, 100], ["a-2", 100, 150]])
        assert state["cluster"]["scaling"]["mode"] == "automatic"
        assert state["latency"]["ttft"]["minute"]["count"] == 1
        assert state["events"]["decisions"][0]["reason"] == "horizon"
        async with client.stream("GET", "/ui/api/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.aiter_lines()
            first = await sections(lines)
            assert first["attention"]["nodes"][0]["used_tokens"] == 250
            await parts.publish(2, a_1=NodeState.ACTIVE, a_2=NodeState.ACTIVE)
            news = await sections(lines, until="events")
            assert news["attention"]["nodes"][1]["state"] == "active"
            assert [event["after"] for event in news["events"]["events"]][-1] == "active"


@pytest.mark.redis
async def test_an_outage_of_the_store_is_told_in_words_and_the_last_known_state_stays(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with cluster(tmp_path, valkey) as (client, _):
        async with client.stream("GET", "/ui/api/events") as stream:
            lines = stream.aiter_lines()
            assert (await sections(lines))["cluster"]["store_fault"] == ""
            valkey.kill()
            told = await sections(lines, until="cluster")
            while not told["cluster"]["store_fault"]:
                told = await sections(lines, until="cluster")
            assert "routing-table store" in told["cluster"]["store_fault"]
            assert told["cluster"]["epoch"] == 1
        answer = await client.get("/ui/api/state")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert "routing-table store" in answer.json()["error"]["message"]


@pytest.mark.redis
async def test_viewers_are_bounded_and_leaving_makes_room(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with cluster(tmp_path, valkey, ui_max_viewers=1) as (client, _):
        async with client.stream("GET", "/ui/api/events") as stream:
            await sections(stream.aiter_lines())
            refused = await client.get("/ui/api/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            assert "ui-max-viewers" in refused.json()["error"]["message"]

        async def is_let_in() -> bool:
            async with client.stream("GET", "/ui/api/events") as stream:
                return stream.status_code == 200

        await eventually(is_let_in)


@pytest.mark.redis
async def test_a_router_that_shuts_down_ends_the_streams_and_is_not_held_by_them(
    tmp_path: Path, valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with httpx.AsyncClient(timeout=30) as outside:
        async with cluster(tmp_path, valkey) as (client, _):
            request = outside.build_request("GET", client.base_url.join("/ui/api/events"))
            stream = await outside.send(request, stream=True)
            lines = stream.aiter_lines()
            await sections(lines)
        assert [line async for line in lines if line.startswith("event: attention")] == []
        await stream.aclose()
    assert "timeout graceful shutdown exceeded" not in caplog.text


async def test_the_files_of_the_page_are_guarded_and_asked_again_by_their_etag(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        moved = await client.get("/ui")
        assert (moved.status_code, moved.headers["location"]) == (307, "ui/")
        kinds = set()
        for path in sorted(page_paths() - {"/ui"}):
            answer = await client.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            kinds.add(answer.headers["content-type"].partition(";")[0])
            again = await client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert kinds == {"text/html", "text/css", "text/javascript", "image/svg+xml"}
        assert (await client.head("/ui/")).status_code == 200
        assert (await client.get("/ui/nothing.js")).json()["error"]["code"] == "not_found"
        assert not any(path.startswith("/ui") for path in (await client.get("/openapi.json")).json()["paths"])


async def test_the_files_need_no_key_and_the_figures_do(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    path = tmp_path / "keys.json"
    CliRunner().invoke(command_line, ["keys", "create", "alice", "--file", str(path)])
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [node], auth={"keys_file": path}) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for file in page_paths():
            assert (await client.get(file)).status_code in (200, 307), file
        for data in ("/ui/api/state", "/ui/api/events", "/ui/api", "/ui/main.js/x", "/ui//api/state"):
            assert (await client.get(data)).status_code == 401, data


async def test_the_page_can_be_switched_off(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [node], ui=False) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for path in ("/ui", "/ui/", "/ui/main.js", "/ui/api/state", "/ui/api/events"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200

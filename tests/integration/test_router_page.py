"""The live page in a real browser: it follows the cluster, streams a chat, and can be used by all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys
from tests.browser import browser, needs_chromium
from tests.router_parts import Event, endless, saying
from tests.ui_cluster import LETTER, ui_cluster
from typer.testing import CliRunner

from kernelflume.cli.main import app as command_line
from kernelflume.core.routing import NodeState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.browser import Page
    from tests.valkey import ValkeyProcess

    from kernelflume.rpc.v1 import wnode_pb2

pytestmark = [pytest.mark.redis, needs_chromium]

CARDS = "[...document.querySelectorAll('#attention > li')].map((card) => card.getAttribute('aria-label'))"
LIVE = "document.getElementById('link').textContent.includes('live')"
NO_SIDEWAYS_SCROLL = "return document.documentElement.scrollWidth <= innerWidth"

FAULTS_OF_ACCESS = Path(__file__).with_name("access_faults.js")


def lane_of(node_id: str) -> str:
    return (
        "[...document.querySelectorAll('#timeline g')].filter((lane) => "
        f"lane.querySelector('text').textContent === '{node_id}').length"
    )


async def opened(page: Page, url: str) -> None:
    await page.open(f"{url}/ui")
    await page.eventually(LIVE)


async def test_cards_ranges_and_the_time_line_follow_the_cluster_live(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with ui_cluster(tmp_path, valkey) as cluster, browser() as page:
        await page.emulate()
        await opened(page, cluster.url)
        labels = await page.eventually(f"({CARDS}).length === 2 && {CARDS}")
        assert labels[0].startswith("Attention node a-1, active, 25 % of KV used, 250 of 1,000 tokens")
        assert labels[1].startswith("Attention node a-2, draining")
        weights = "document.querySelector('#weight > li').getAttribute('aria-label')"
        await page.eventually(f"{weights} === 'Weight node w-1, serving, 0 requests'")
        titles = "[...document.querySelectorAll('#ranges rect title')].map((title) => title.textContent)"
        assert await page.eventually(f"({titles}).length === 2 && {titles}") == [
            "a-1 [0, 100), 100 tokens",
            "a-2 [100, 150), 50 tokens",
        ]
        # In the colour of their nodes, each of which has its own.
        colours = await page.run(
            "return [...document.querySelectorAll('#ranges rect, #attention .swatch rect')]"
            ".map((rect) => getComputedStyle(rect).fill)"
        )
        assert colours[:2] == colours[2:4]
        assert colours[0] != colours[1]
        height = await page.run("return document.documentElement.scrollHeight")

        await cluster.publish(2, a_1=NodeState.ACTIVE, a_2=NodeState.DRAINING, a_3=NodeState.PREWARMING)
        await page.eventually(f"({CARDS})[2]?.startsWith('Attention node a-3, prewarming')")
        await cluster.publish(3, a_1=NodeState.ACTIVE, a_3=NodeState.ACTIVE)
        cluster.run_sequence(42, ("a-1", 0, 60), ("a-3", 60, 90))
        await page.eventually(f"({CARDS}).length === 2 && ({CARDS})[1].includes('a-3, active')")
        await page.eventually(f"({titles}).includes('a-3 [60, 90), 30 tokens')")
        assert await page.text("figure-epoch") == "3"
        await page.run("document.getElementById('ranges-details').open = true")
        await page.eventually(
            "document.getElementById('ranges-rows').textContent.includes('a-1[0,60) a-3[60,90)')"
        )
        await page.run("document.getElementById('ranges-details').open = false")
        assert await page.eventually(lane_of("a-3")) == 1
        events = await page.text("events")
        assert "attention node a-3: prewarming → active" in events
        assert "attention node a-2 left (draining)" in events
        assert "a-3: prewarming → active" in await page.text("announcer")
        # Cards fit beside each other here: nothing below them moved.
        assert await page.run("return document.documentElement.scrollHeight") == height
        assert await page.log() == []


async def test_an_outage_of_the_store_is_said_and_over_when_it_is_back(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with ui_cluster(tmp_path, valkey) as cluster, browser() as page:
        await opened(page, cluster.url)
        valkey.pause()
        banner = "document.getElementById('banner')"
        await page.eventually(f"!{banner}.hidden && {banner}.textContent.includes('cannot be read')")
        assert "what was known last is below" in await page.text("banner")
        assert len(await page.run(f"return {CARDS}")) == 2
        valkey.resume()
        await page.eventually(f"{banner}.hidden")


async def test_a_chat_streams_can_be_stopped_and_shows_its_latency(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with ui_cluster(tmp_path, valkey, endless(LETTER, pause_s=0.02)) as cluster, browser() as page:
        await opened(page, cluster.url)
        await page.click("chat-text")
        await page.press("Tell me")
        await page.chord(Keys.SHIFT, Keys.ENTER)
        await page.press("a story", Keys.ENTER)
        answer = "(document.querySelector('.turn.assistant')?.textContent ?? '')"
        shorter = await page.eventually(f"{answer}.length > 12 && {answer}.length")
        await page.eventually(f"{answer}.length > {shorter}")
        assert await page.run("return document.getElementById('chat-send').disabled")
        await page.click("chat-stop")
        await page.eventually("document.getElementById('chat-status').textContent === 'stopped'")
        # The sequence ends on the weight node as well.
        await cluster.node.wait(lambda: len(cluster.node.cancelled) == 1)
        assert (
            await page.run("return document.querySelector('.turn.user').textContent")
            == "You: Tell me\na story"
        )
        assert not await page.run("return document.getElementById('chat-send').disabled")
        await page.eventually("document.getElementById('ttft-caption').textContent.includes('p50')")
        await page.eventually("document.querySelectorAll('#tpot-chart circle, #tpot-chart polyline').length")
        assert await page.log() == []


async def test_the_keyboard_is_enough_for_the_chat(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with ui_cluster(tmp_path, valkey, saying(LETTER, LETTER + 1)) as cluster, browser() as page:
        await opened(page, cluster.url)
        focus = "document.activeElement.id || document.activeElement.className"
        await page.press(Keys.TAB)
        assert await page.run(f"return {focus}") == "skip"
        assert await page.run("return document.activeElement.getBoundingClientRect().top >= 0")
        await page.press(Keys.ENTER)
        await page.eventually("document.activeElement.id === 'chat'")
        visited: list[str] = []
        while (at := await page.run(f"return {focus}")) != "chat-text" and len(visited) < 6:
            visited.append(at)
            await page.press(Keys.TAB)
        assert visited == ["chat", "chat-clear", "chat-log"]
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.run(f"return {outline}") == "solid"
        await page.press("Hello", Keys.ENTER)
        await page.eventually("document.getElementById('chat-status').textContent.includes('first after')")
        assert await page.run("return document.activeElement.id") == "chat-text"


async def test_failures_are_said_in_words_and_the_question_is_kept(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async def breaks_off(request: wnode_pb2.GenerateRequest) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        yield Event(token_ids=[LETTER])
        await asyncio.sleep(0.3)
        raise RuntimeError("as asked")

    async with ui_cluster(tmp_path, valkey, breaks_off) as cluster, browser() as page:
        await opened(page, cluster.url)
        error = "document.getElementById('chat-error').textContent"
        await page.click("chat-text")
        await page.press("refuse me", Keys.ENTER)
        assert "refused as asked" in await page.eventually(error)
        assert await page.run("return document.getElementById('chat-text').value") == "refuse me"
        await page.chord(Keys.CONTROL, "a")
        await page.press("go on", Keys.ENTER)
        await page.eventually(f"{error}.startsWith('The answer broke off: ')")
        assert await page.run("return document.querySelectorAll('.turn').length") == 2


async def test_a_key_is_asked_for_in_words_and_then_opens_page_and_chat(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    path = tmp_path / "keys.json"
    created = CliRunner().invoke(command_line, ["keys", "create", "alice", "--file", str(path)])
    key = created.stdout.strip()
    async with ui_cluster(tmp_path, valkey, auth={"keys_file": path}) as cluster, browser() as page:
        await page.open(f"{cluster.url}/ui")
        banner = "document.getElementById('banner').textContent"
        await page.eventually(f"{banner}.includes('API key was not accepted')")
        assert "Options and API key" in await page.text("banner")
        await page.run("document.getElementById('chat-options').open = true")
        await page.click("api-key")
        await page.press("wrong")
        await page.click("chat-text")
        await page.press("Hello", Keys.ENTER)
        error = "document.getElementById('chat-error').textContent"
        assert "Incorrect API key provided" in await page.eventually(error)
        await page.click("api-key")
        await page.chord(Keys.CONTROL, "a")
        await page.press(key, Keys.TAB)
        await page.eventually(LIVE)
        await page.eventually("document.getElementById('banner').hidden")
        await page.click("chat-text")
        await page.press(Keys.ENTER)
        await page.eventually("document.getElementById('chat-status').textContent.includes('first after')")
        assert await page.run("return document.getElementById('chat-error').hidden")
        assert await page.run("return JSON.stringify({...localStorage})") == "{}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_names_headings_and_contrast_are_there_in_both_schemes(
    tmp_path: Path, valkey: ValkeyProcess, scheme: str
) -> None:
    async with ui_cluster(tmp_path, valkey) as cluster, browser() as page:
        await page.emulate(prefers_color_scheme=scheme)
        await opened(page, cluster.url)
        await page.run("for (const part of document.querySelectorAll('details')) part.open = true")
        await page.click("chat-text")
        await page.press("Hello", Keys.ENTER)
        await page.eventually("document.getElementById('chat-status').textContent.includes('first after')")
        assert await page.run(FAULTS_OF_ACCESS.read_text()) == []
        assert await page.log() == []


async def test_a_phone_shows_everything_without_scrolling_sideways(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    async with ui_cluster(tmp_path, valkey) as cluster, browser() as page:
        await page.emulate(width=360, height=740, prefers_reduced_motion="reduce")
        await opened(page, cluster.url)
        await page.run("for (const part of document.querySelectorAll('details')) part.open = true")
        assert await page.run(NO_SIDEWAYS_SCROLL)
        texts = ".figures dt, .figures dd, .cards h3, .cards dt, .cards dd, .cards .pair, figcaption span"
        cut = await page.run(
            f"return [...document.querySelectorAll('{texts}')]"
            ".filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent)"
        )
        assert cut == []
        targets = await page.run(
            "return [...document.querySelectorAll('#chat-send, #chat-stop, textarea')]"
            ".map((node) => node.getBoundingClientRect().height)"
        )
        assert min(targets) >= 36
        assert (
            await page.run("return getComputedStyle(document.querySelector('.bar rect')).transitionDuration")
            == "0s"
        )
        await page.emulate(width=1920, height=1080)
        await page.eventually("innerWidth === 1920")
        assert await page.run(NO_SIDEWAYS_SCROLL)

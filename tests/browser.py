"""A real headless Chromium for tests of the live page, driven without blocking the event loop."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WAIT_S = 60.0

needs_chromium = pytest.mark.skipif(
    not (PROGRAM and DRIVER),
    reason="needs chromium and chromedriver (Debian: apt-get install chromium-driver)",
)
_FLAGS = (
    *("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"),
    # Containers run tests as root, where the sandbox cannot be made; only our own page is opened.
    "--no-sandbox",
)


class Page:
    """One page in a browser of its own."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    async def open(self, url: str) -> None:
        await asyncio.to_thread(self._driver.get, url)

    async def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script's ``return`` gives."""
        return await asyncio.to_thread(self._driver.execute_script, script, *arguments)

    async def eventually(self, expression: str, *arguments: Any) -> Any:
        """Wait until an expression is true in the page, and return its value.

        Raises:
            AssertionError: it did not become true; the message has the text of the page.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                while not (value := await self.run(f"return {expression}", *arguments)):  # noqa: ASYNC110 - in a browser
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.run("return document.body.innerText")
            raise AssertionError(f"never true: {expression}\n{text}\n{await self.log()}") from None
        return value

    async def text(self, element_id: str) -> str:
        text: str = await self.run("return document.getElementById(arguments[0]).textContent", element_id)
        return text

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        await asyncio.to_thread(ActionChains(self._driver).send_keys(*keys).perform)

    async def chord(self, modifier: str, key: str) -> None:
        """Press a key while another one is held."""
        chain = ActionChains(self._driver).key_down(modifier).send_keys(key).key_up(modifier)
        await asyncio.to_thread(chain.perform)

    async def click(self, element_id: str) -> None:
        await asyncio.to_thread(self._driver.find_element("id", element_id).click)

    async def log(self) -> list[str]:
        """Return what the browser had to complain about since it was last asked."""
        entries = await asyncio.to_thread(self._driver.get_log, "browser")
        return [entry["message"] for entry in entries]

    async def emulate(self, *, width: int = 1280, height: int = 900, **features: str) -> None:
        """Take a size in CSS pixels and media features, such as ``prefers_color_scheme="dark"``."""
        await self._devtools(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self._devtools("Emulation.setEmulatedMedia", {"features": media})

    async def _devtools(self, command: str, parameters: dict[str, Any]) -> None:
        await asyncio.to_thread(self._driver.execute_cdp_cmd, command, parameters)


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Run a browser with an empty profile."""
    options = webdriver.ChromeOptions()
    assert PROGRAM is not None
    options.binary_location = PROGRAM
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = await asyncio.to_thread(webdriver.Chrome, options=options, service=Service(DRIVER))
    try:
        yield Page(driver)
    finally:
        await asyncio.to_thread(driver.quit)

"""Which attention nodes offer lanes that kernels exchange through."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from tests.anode import GEOMETRY

from kernelflume.anode.gpu import device_link, host_link, opener
from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.core.errors import ConfigurationError, HandshakeError
from kernelflume.core.regions import DeviceLanes, LanePath

if TYPE_CHECKING:
    from collections.abc import Callable

OFFER = DeviceLanes(8, "local", ())


def opened(monkeypatch: pytest.MonkeyPatch, make: Callable[..., object], dtype: str = "bfloat16") -> Any:
    """Return the opener of a node whose pages lie as on a GPU, with everything installed."""
    monkeypatch.setattr(opener, "missing_packages", lambda _: [])
    monkeypatch.setattr(device_link, "DeviceLink", make)
    geometry = dataclasses.replace(GEOMETRY, dtype=dtype, kv_dtype=dtype)
    pages = DevicePages(geometry, page_tokens=4, num_pages=4, device=torch.device("cpu"))
    return opener.device_link_opener(cast("Any", SimpleNamespace(storage=pages)), cast("Any", None))


def failing(error: Exception) -> Callable[..., object]:
    def make(*_: object) -> object:
        raise error

    return make


def test_a_node_whose_kernels_cannot_be_built_takes_the_posted_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_link = opened(monkeypatch, failing(ConfigurationError("nvcc is not on the PATH")))
    assert open_link(OFFER) is None
    assert "no device path: nvcc is not on the PATH" in caplog.text


def test_an_offer_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    open_link = opened(monkeypatch, failing(HandshakeError("device lanes need two regions each")))
    with pytest.raises(HandshakeError):
        open_link(OFFER)


def test_float32_has_no_device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(monkeypatch, failing(AssertionError()), dtype="float32") is None


def test_the_offer_says_which_path_the_lanes_are_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_link, "HostLink", lambda *_: "host lanes")
    open_link = opened(monkeypatch, lambda *_: "device lanes")
    assert open_link(OFFER) == "device lanes"
    assert open_link(dataclasses.replace(OFFER, path=LanePath.HOST)) == "host lanes"
    assert open_link(dataclasses.replace(OFFER, path="new")) is None
    assert "no lanes for the new path" in caplog.text

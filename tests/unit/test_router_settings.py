from __future__ import annotations

import pytest

from kernelflume.core.errors import ConfigurationError
from kernelflume.router.settings import RouterSettings
from kernelflume.runtime.settings import load


def parsed(*flags: str) -> RouterSettings:
    return load(RouterSettings, ["--model", "m", *flags], program="kernelflume router")


def test_the_model_is_served_under_its_own_name_unless_told() -> None:
    assert parsed().model_names == ("m",)
    assert parsed("--served-model-name", "a,b").model_names == ("a", "b")
    assert parsed("--served-model-name", "a", "--served-model-name", "b").model_names == ("a", "b")


def test_lists_and_sizes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFLUME_ROUTER_WEIGHT_NODES", "10.0.0.1:5, 10.0.0.2:5")
    monkeypatch.setenv("KERNELFLUME_ROUTER_MAX_BODY_SIZE", "1MiB")
    settings = parsed()
    assert settings.weight_nodes == ("10.0.0.1:5", "10.0.0.2:5")
    assert settings.max_body_size == 1024 * 1024


def test_a_key_may_have_half_of_what_is_read_of_large_bodies_but_one_of_any_size() -> None:
    assert parsed("--max-body-size", "1MiB", "--max-bodies-size", "4MiB").key_bodies_size == 2 * 1024 * 1024
    assert parsed("--max-body-size", "3MiB", "--max-bodies-size", "4MiB").key_bodies_size == 3 * 1024 * 1024


@pytest.mark.parametrize(
    "flags", [("--port", "70000"), ("--stall-timeout", "0"), ("--max-model-len", "1"), ("--max-choices", "0")]
)
def test_bad_values_are_named(flags: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=flags[0]):
        parsed(*flags)

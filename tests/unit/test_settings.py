"""Settings: precedence of the sources, and errors that name the setting as it was given."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import SettingsConfigDict

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.settings import ByteSize, ServiceSettings, load, load_or_exit, parse_size

if TYPE_CHECKING:
    from pathlib import Path


class Limits(BaseModel):
    """Limits of the sample service."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_rows: int = 8
    """Rows a step."""
    max_wait_s: float = 0.5
    """Longest wait."""


class SampleSettings(ServiceSettings):
    """A sample service."""

    model_config = SettingsConfigDict(env_prefix="KERNELFLUME_SAMPLE_")

    node_id: str
    """Name of the node."""
    memory: ByteSize = parse_size("512MiB")
    """Pool size."""
    count: int = Field(default=2, ge=1)
    """How many."""
    kind: Literal["one", "two"] = "one"
    """Which kind."""
    peers: tuple[str, ...] = ()
    """Addresses of the peers."""
    model_name: str | None = None
    """A name that begins like pydantic's own."""
    limits: Limits = Limits()
    """Bounds."""


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    path = tmp_path / "sample.yaml"
    path.write_text("node_id: from-file\ncount: 5\nmemory: 1GiB\nkind: two\nlimits:\n  max_rows: 3\n")
    return path


def parse(*argv: str) -> SampleSettings:
    return load(SampleSettings, list(argv), program="sample")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        (1024, 1024),
        ("10", 10),
        ("10B", 10),
        ("1k", 1024),
        ("1.5KiB", 1536),
        ("512MiB", 512 << 20),
        ("2 GB", 2 << 30),
        ("1t", 1 << 40),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text: str | int, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "lots", "-1", "1XB", "1 G i B", "0x10", True])
def test_what_is_no_size_is_refused(text: str | bool) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


def test_defaults_hold_where_nothing_is_said() -> None:
    settings = parse("--node-id", "a")
    assert settings == SampleSettings(node_id="a")
    assert (settings.memory, settings.count, settings.cluster) == (512 << 20, 2, "kernelflume")


def test_flags_win_over_environment_over_file_over_defaults(
    yaml_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELFLUME_SAMPLE_COUNT", "6")
    monkeypatch.setenv("KERNELFLUME_SAMPLE_KIND", "one")
    settings = parse("--config", str(yaml_file), "--count", "7")
    assert (settings.count, settings.kind, settings.node_id, settings.memory) == (
        7,
        "one",
        "from-file",
        1 << 30,
    )
    assert settings.log_level == "info"


def test_the_file_may_be_named_by_the_environment(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFLUME_SAMPLE_CONFIG", str(yaml_file))
    assert parse().node_id == "from-file"


def test_a_file_may_write_names_like_flags(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text("node-id: dashed\n")
    assert parse("--config", str(path)).node_id == "dashed"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text("# nothing yet\n")
    assert parse("--config", str(path), "--node-id", "a").count == 2


def test_one_field_of_a_group_leaves_the_others(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("--config", str(yaml_file)).limits == Limits(max_rows=3, max_wait_s=0.5)
    monkeypatch.setenv("KERNELFLUME_SAMPLE_LIMITS__MAX_ROWS", "4")
    settings = parse("--config", str(yaml_file), "--limits.max-wait-s", "0.25")
    assert settings.limits == Limits(max_rows=4, max_wait_s=0.25)


def test_a_list_is_given_by_repeating_or_commas_and_as_json_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse("--node-id", "a", "--peers", "x:1", "--peers", "y:2").peers == ("x:1", "y:2")
    assert parse("--node-id", "a", "--peers", "x:1,y:2").peers == ("x:1", "y:2")
    monkeypatch.setenv("KERNELFLUME_SAMPLE_PEERS", '["z:3"]')
    assert parse("--node-id", "a").peers == ("z:3",)


def test_a_boolean_flag_stands_alone() -> None:
    assert parse("--node-id", "a", "--exit-with-parent").exit_with_parent
    assert not parse("--node-id", "a", "--no-exit-with-parent").exit_with_parent


def test_settings_are_frozen_and_travel_to_another_process() -> None:
    settings = parse("--node-id", "a", "--count", "3")
    with pytest.raises(ValidationError, match="frozen"):
        settings.count = 4
    assert type(settings) is SampleSettings
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--node-id (or KERNELFLUME_SAMPLE_NODE_ID) is required"),
        (["--node-id", "a", "--count", "0"], "--count: input should be greater than or equal to 1"),
        (["--node-id", "a", "--count", "x"], "--count: input should be a valid integer"),
        (["--node-id", "a", "--memory", "1XB"], "--memory: '1XB' is no size"),
        (["--node-id", "a", "--kind", "three"], "--kind: input should be 'one' or 'two'"),
        (["--node-id", "a", "--log-level", "loud"], "--log-level: input should be 'debug', 'info'"),
        (["--node-id", "a", "--redis-url", "127.0.0.1:6379"], "--redis-url: string should match"),
        (["--node-id", "a", "--cluster", "a b"], "--cluster: string should match"),
        (["--node-id", "a", "--limits.max-rows", "x"], "--limits.max_rows: input should be a valid integer"),
    ],
)
def test_a_bad_flag_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(*argv)
    assert message in str(caught.value)


def test_every_bad_value_is_named_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("node_id: a\nmemory: much\n")
    monkeypatch.setenv("KERNELFLUME_SAMPLE_COUNT", "many")
    with pytest.raises(ConfigurationError) as caught:
        parse("--config", str(path), "--kind", "three")
    message = str(caught.value)
    assert f"memory in {path}: 'much' is no size" in message
    assert "KERNELFLUME_SAMPLE_COUNT: input should be a valid integer" in message
    assert "--kind: input should be 'one' or 'two'" in message


def test_a_list_in_the_environment_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFLUME_SAMPLE_PEERS", "[x")
    with pytest.raises(ConfigurationError, match="peers"):
        parse("--node-id", "a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node_id: a\nnode_idd: b\n", "node_idd in {path}: there is no such setting"),
        ("node_id: a\nlimits:\n  max_row: 1\n", "limits in {path}.max_row: there is no such setting"),
        ("node_id: [a\n", "{path}: no YAML"),
        ("- node_id\n", "{path}: not a mapping of settings, `name: value` lines"),
        ("just text\n", "{path}: not a mapping of settings, `name: value` lines"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        parse("--config", str(path))
    assert message.format(path=path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--config: cannot read .*absent.yaml: No such file"):
        parse("--config", str(tmp_path / "absent.yaml"))


def test_a_bad_value_ends_the_process_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_or_exit(SampleSettings, program="sample", argv=["--node-id", "a", "--count", "0"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "sample: --count: input should be greater than or equal to 1\n"


def test_an_unknown_flag_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_or_exit(SampleSettings, program="sample", argv=["--node-id", "a", "--cuont", "0"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --cuont 0" in capsys.readouterr().err


def test_help_tells_each_setting_with_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_or_exit(SampleSettings, program="kernelflume sample", argv=["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: kernelflume sample")
    assert "A sample service." in text
    assert "--count int How many. (default: 2) [env: KERNELFLUME_SAMPLE_COUNT]" in text
    assert "--node-id str Name of the node. (required)" in text
    assert "--kind {one,two}" in text

"""A scaler process with certificates and a token, and the command line that calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.certificates import Authority
from tests.scaler_rig import CLUSTER, WAIT_S, eventually
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.core.geometry import KvGeometry
from kernelflume.core.leases import NodeKind
from kernelflume.rpc.channel import Channels
from kernelflume.runtime.tls import TlsSettings
from kernelflume.scaler.waiting import is_serving
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.valkey import ValkeyProcess

pytestmark = pytest.mark.redis

TOKEN = "tell-nobody-of-this"  # noqa: S105 - made up for this test
FAKE_ANODE = Path(__file__).parent.parent / "fake_anode.py"
GEOMETRY = KvGeometry(
    model_id="m",
    model_revision="r",
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    dtype="float32",
    kv_dtype="float32",
)


def scaler_command(url: str, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "kernelflume.scaler", "--redis-url", url, "--cluster", CLUSTER),
        *("--address", "127.0.0.1:0", "--geometry", json.dumps(GEOMETRY.to_dict())),
        *("--attention-node-command", sys.executable, "--attention-node-command", str(FAKE_ANODE)),
        *flags,
    ]


@contextmanager
def running(command: list[str], log_file: Path) -> Iterator[None]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=WAIT_S)


def logged(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.log"))


async def test_mutual_tls_and_a_token_from_the_command_line_to_the_nodes(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    node, person = authority.issue("node"), authority.issue("person")
    token_file, wrong_file = tmp_path / "token", tmp_path / "wrong"
    token_file.write_text(TOKEN + "\n")
    wrong_file.write_text("guessed-token")
    store = RedisStore(valkey.url, cluster=CLUSTER, timeout_s=WAIT_S)
    tls = TlsSettings(
        certificate=node.certificate, key=node.key, ca=authority.ca, require_client_certificate=True
    )
    command = scaler_command(
        valkey.url,
        *(*tls.flags(), "--admin-token-file", str(token_file)),
        *("--attention-nodes", "1", "--log-dir", str(tmp_path), "--log-level", "debug"),
    )
    with running(command, tmp_path / "scaler.log"):

        async def one_active() -> bool:
            return [item.state for item in (await store.read()).nodes] == ["active"]

        await eventually(one_active)
        [leased] = await store.living(NodeKind.ATTENTION)
        await eventually(lambda: is_serving(leased.address, Channels(tls=tls.open())))
        assert not await is_serving(leased.address)
        [record] = await store.living(NodeKind.SCALER)
        secured = [
            *("--scaler", record.address, "--tls-ca", str(authority.ca)),
            *("--tls-certificate", str(person.certificate), "--tls-key", str(person.key)),
        ]

        def kernelflume(*arguments: str) -> tuple[int, str, str]:
            result = CliRunner().invoke(app, arguments)
            return result.exit_code, result.stdout, result.stderr

        code, out, err = kernelflume("status", "--json", *secured, "--token-file", str(token_file))
        assert (code, err) == (0, "")
        assert json.loads(out)["target_attention_nodes"] == 1
        scale = ("scale", "--attention-nodes", "2", "--wait", *secured)
        code, out, err = kernelflume(*scale, "--token-file", str(token_file))
        assert code == 0, err
        assert "succeeded: 1 -> 2" in out
        for credentials in ((), ("--token-file", str(wrong_file))):
            code, out, err = kernelflume(*scale, *credentials)
            assert (code, out) == (1, "")
            assert err == (
                f"kernelflume: the scaler at {record.address}: a valid token is required (--token-file)\n"
            )
        anonymous = ("--scaler", record.address, "--tls-ca", str(authority.ca))
        code, _, err = kernelflume("status", *anonymous, "--token-file", str(token_file))
        assert code == 1
        assert err.startswith(f"kernelflume: no scaler answers at {record.address} over TLS")
        code, _, err = kernelflume("status", "--scaler", record.address)
        assert code == 1
        assert "does it want TLS (--tls-ca)?" in err
    await store.close()
    text = logged(tmp_path)
    assert '"admin service listens at' in text
    assert TOKEN not in text
    assert "guessed-token" not in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls.certificate={node}",), "--tls: tls.certificate needs tls.key as well"),
        (("--tls.ca={absent}",), "--tls.ca: cannot read {absent}: No such file or directory"),
    ],
)
def test_bad_certificates_stop_the_start_with_one_line(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    places = {"node": Authority(tmp_path).ca, "absent": tmp_path / "absent.pem"}
    command = scaler_command("redis://127.0.0.1:1/0", *(flag.format(**places) for flag in flags))
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert done.stderr == f"kernelflume scaler: {message.format(**places)}\n"


def test_a_missing_token_file_stops_the_start(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    command = scaler_command("redis://127.0.0.1:1/0", "--admin-token-file", str(absent))
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert f"refused to start: admin-token-file: cannot read {absent}" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls-ca", "{absent}"), "--tls-ca: cannot read {absent}: No such file or directory"),
        (("--tls-certificate", "{ca}"), "--tls-certificate needs --tls-key as well"),
        (("--token-file", "{absent}"), "--token-file: cannot read {absent}: No such file or directory"),
    ],
)
def test_the_command_line_names_its_flags(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    places = {"ca": Authority(tmp_path).ca, "absent": tmp_path / "absent"}
    result = CliRunner().invoke(app, ["status", *(flag.format(**places) for flag in flags)])
    assert result.exit_code == 2
    assert result.stderr == f"kernelflume: {message.format(**places)}\n"

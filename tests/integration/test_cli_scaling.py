"""The commands that show and steer automatic scaling, against a scaler that is a process."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.scaler_process import active_nodes, address_of, running_scaler, write_anew
from tests.scaler_rig import CLUSTER, WAIT_S, eventually
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.cli.watch import watch_topology
from kernelflume.core.errors import UnauthenticatedError
from kernelflume.rpc.channel import Channels
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.redis


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey_url, cluster=CLUSTER, timeout_s=WAIT_S)
    yield store
    await store.close()


async def kernelflume(address: str, *arguments: str, text: str | None = None) -> tuple[int, str, str]:
    """Run the command beside this event loop; give its exit code, output and errors."""
    result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--scaler", address], input=text)
    return result.exit_code, result.stdout, result.stderr


async def test_policy_drain_status_and_top(store: RedisStore, valkey_url: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("minimum_nodes: 2\nmaximum_nodes: 3\nscale_down_cooldown_s: 1000\nsilence_s: 1000\n")
    with running_scaler(valkey_url, tmp_path / "logs", "--policy-file", str(file)):
        address = await address_of(store)
        await active_nodes(store, 2)

        code, shown, _ = await kernelflume(address, "policy", "show")
        assert code == 0
        assert shown.startswith(f"# scaling is automatic; policy from: {file}\n")
        assert yaml.safe_load(shown)["minimum_nodes"] == 2

        code, out, err = await kernelflume(
            address, "policy", "set", "-", text="gamma: 2\nminimal_nodes: 1\nmaximum_nodes: x\n"
        )
        assert (code, out) == (1, "")
        assert "gamma: " in err
        assert "minimal_nodes: " in err
        assert "maximum_nodes: " in err
        assert len(err.splitlines()) == 1
        assert await kernelflume(address, "policy", "show") == (0, shown, "")

        # What is shown can be edited and set.
        edited = shown.replace("minimum_nodes: 2", "minimum_nodes: 1").replace("gamma: 0.85", "gamma: 0.5")
        code, out, _ = await kernelflume(address, "policy", "set", "-", text=edited)
        assert code == 0
        assert out == edited.replace(str(file), "api")

        async def waits_to_shrink() -> bool:
            _, told, _ = await kernelflume(address, "status", "--json")
            return [decision["reason"] for decision in json.loads(told)["decisions"]][-1:] == ["cooldown"]

        await eventually(waits_to_shrink)

        code, out, _ = await kernelflume(address, "policy", "pause")
        assert (code, out.splitlines()[0]) == (0, "# scaling is manual; policy from: api")
        code, out, _ = await kernelflume(address, "status")
        assert code == 0
        assert "scaling: manual, " in out
        code, out, _ = await kernelflume(address, "policy", "resume")
        assert (code, out.splitlines()[0]) == (0, "# scaling is automatic; policy from: api")

        code, out, err = await kernelflume(address, "drain", "a-9")
        assert code == 1
        assert "a-9" in err
        code, out, err = await kernelflume(
            address, "drain", "a-1", "--wait", "--operation-id", "go", "--deadline", "120"
        )
        assert code == 0
        assert out.startswith("succeeded: 2 -> 1 attention nodes (draining ")
        assert err.splitlines()[-1] == "done"
        assert await active_nodes(store, 1) == ["a-2"]
        again = await kernelflume(address, "drain", "a-1", "--operation-id", "go")
        assert again == (0, out, "")
        code, _, err = await kernelflume(address, "drain", "a-2")
        assert code == 1
        assert "fewer than the minimum of 1" in err

        # A person's drain suspends automatic scaling, and the views say so.
        code, out, _ = await kernelflume(address, "top", "--once")
        assert code == 0
        lines = out.splitlines()
        assert lines[0].startswith(f"kernelflume top, scaler {address}, ")
        assert lines[2].startswith("scaling: manual")
        assert lines[3].startswith("last operation go by a person: 2 -> 1 attention nodes, a-1: succeeded; ")
        assert [line.split()[:2] for line in lines if line.startswith("a-2")] == [["a-2", "active"]]
        assert any("steady" in line for line in lines)
        code, out, _ = await kernelflume(address, "status", "--json")
        fields = json.loads(out)
        assert (fields["scaling_mode"], fields["operation"]["origin"]) == ("manual", "person")
        # C_thresh of beta_memory 0.9 and a capacity of 1000 tokens.
        assert fields["attention_nodes"][0]["threshold_tokens"] == 900
        reasons = [decision["reason"] for decision in fields["decisions"]]
        # Two nodes were the minimum, and then one more than it.
        assert "steady" in reasons
        assert reasons[-1] == "cooldown"


async def test_a_policy_that_is_not_automatic_cannot_be_resumed(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    with running_scaler(valkey_url, tmp_path, "--attention-nodes", "1"):
        address = await address_of(store)
        await active_nodes(store, 1)
        code, out, _ = await kernelflume(address, "policy", "show")
        assert (code, out.splitlines()[0]) == (0, "# scaling is manual; policy from: default")
        code, _, err = await kernelflume(address, "policy", "resume")
        assert (code, "set `automatic: true` first" in err) == (1, True)


async def test_the_policy_file_is_read_again_when_it_is_edited(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("minimum_nodes: 1\n")
    log = tmp_path / "logs" / "scaler.log"
    with running_scaler(valkey_url, log.parent, "--policy-file", str(file)):
        address = await address_of(store)
        await active_nodes(store, 1)

        write_anew(file, "minimum_nodes: 2\n")
        await active_nodes(store, 2)
        code, good, _ = await kernelflume(address, "policy", "show")
        assert (code, yaml.safe_load(good)["minimum_nodes"]) == (0, 2)

        write_anew(file, "minimum_nodes: 0\ngama: 0.5\n")

        async def refused() -> bool:
            return "the policy stays as it was" in log.read_text()

        await eventually(refused)
        assert await kernelflume(address, "policy", "show") == (0, good, "")

        # The next good edit is proof that the file was looked at again, and the bad one told only once.
        write_anew(file, "minimum_nodes: 3\n")
        await active_nodes(store, 3)
        told = [line for line in log.read_text().splitlines() if "the policy stays as it was" in line]
        assert len(told) == 1
        assert "minimum_nodes: " in told[0]
        assert "gama: " in told[0]


async def test_a_policy_that_was_set_outlives_the_scaler_unless_the_file_was_edited(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("minimum_nodes: 1\n")
    flags = ("--policy-file", str(file))

    async def in_force() -> tuple[str, int]:
        code, out, _ = await kernelflume(await address_of(store), "policy", "show")
        assert code == 0
        return out.splitlines()[0].rpartition(" ")[2], yaml.safe_load(out)["minimum_nodes"]

    with running_scaler(valkey_url, tmp_path / "logs", *flags) as scaler:
        address = await address_of(store)
        await active_nodes(store, 1)
        assert await in_force() == (str(file), 1)
        code, _, _ = await kernelflume(address, "policy", "set", "-", text="minimum_nodes: 2")
        assert code == 0
        await active_nodes(store, 2)
        scaler.terminate()
        assert await asyncio.to_thread(scaler.wait, WAIT_S) == 0
    with running_scaler(valkey_url, tmp_path / "logs", *flags) as scaler:
        await active_nodes(store, 2)
        assert await in_force() == ("api", 2)
        scaler.terminate()
        assert await asyncio.to_thread(scaler.wait, WAIT_S) == 0
    file.write_text("minimum_nodes: 1  # edited\nmaximum_nodes: 5\n")
    with running_scaler(valkey_url, tmp_path / "logs", *flags):

        async def edited() -> bool:
            return await in_force() == (str(file), 1)

        await eventually(edited)


async def test_a_scaler_that_wants_a_token_gets_it_from_each_command(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("tell-nobody-of-this")
    wrong.write_text("guessed-token")
    with running_scaler(valkey_url, tmp_path / "logs", "--admin-token-file", str(right)):
        address = await address_of(store)
        commands = (("policy", "show"), ("policy", "pause"), ("drain", "a-1"), ("top", "--once"))
        for command in commands:
            code, out, err = await kernelflume(address, *command, "--token-file", str(wrong))
            assert (code, out) == (1, "")
            assert err == f"kernelflume: the scaler at {address}: a valid token is required (--token-file)\n"
        code, out, _ = await kernelflume(address, "policy", "show", "--token-file", str(right))
        assert (code, out.splitlines()[0]) == (0, "# scaling is manual; policy from: default")
        channels = Channels(token="tell-nobody-of-this")  # noqa: S106 - made up for this test
        async with aclosing(watch_topology(address, channels, interval_s=0.1)) as sights:
            for _ in range(2):
                async with asyncio.timeout(WAIT_S):
                    assert (await anext(sights)).fault == ""
        channels = Channels(token="guessed-token")  # noqa: S106 - made up for this test
        with pytest.raises(UnauthenticatedError, match=f"{address}: a valid token is required"):
            await anext(watch_topology(address, channels, interval_s=0.1))

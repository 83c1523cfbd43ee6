"""The plan of a local stack, and how it shares the machine's cores."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from kernelflume.cli.options import PlacementPolicy, chosen_roles
from kernelflume.cli.parts import PartSpec, Probe, member_address
from kernelflume.cli.prepare import growth_warnings
from kernelflume.cli.stack import Ports, StackOptions, base_url, plan_stack
from kernelflume.cli.threads import ThreadBudget, all_threads, divide_threads
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import KvGeometry
from kernelflume.core.roles import WeightNodeRole
from kernelflume.router.placement.policies import PolicyName
from kernelflume.router.settings import RouterSettings
from kernelflume.runtime.settings import load
from kernelflume.scaler.command import weight_node_command
from kernelflume.scaler.providers.ray.host import Place
from kernelflume.scaler.weight_host_settings import WeightHostSettings
from kernelflume.wnode.settings import WeightNodeSettings

GEOMETRY = KvGeometry(
    model_id="small",
    model_revision="abc",
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    dtype="float32",
    kv_dtype="float32",
)
OPTIONS = StackOptions(
    model="/models/small",
    served_model_names=(),
    num_attention_nodes=2,
    attention_node_memory_bytes=1 << 20,
    host="0.0.0.0",
    port=8000,
    scaler_port=8100,
    dtype="auto",
    max_model_len=None,
    redis_url=None,
    cluster="test",
    seed=7,
    transport_error_handling="peer",
    log_level="warning",
    log_dir=Path("/logs"),
)


def plan(options: StackOptions) -> tuple[tuple[PartSpec, ...], ...]:
    return plan_stack(
        options,
        checkpoint=Path("/cache/small"),
        geometry=GEOMETRY,
        ports=Ports(redis=6000, weight_nodes=(8200, 8201, 8202)),
        threads=ThreadBudget(weight_node=4, weight_node_beside_attention=1, attention_node=2),
        embedded_redis=["valkey-server", "--port", "6000"],
    )


def flags(part: PartSpec) -> dict[str, str]:
    assert part.command[:2] == (sys.executable, "-m")
    arguments = part.command[3:]
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_the_store_comes_first_and_the_services_together() -> None:
    assert [[part.name for part in stage] for stage in plan(OPTIONS)] == [
        ["redis"],
        ["scaler", "wnode", "router"],
    ]


def test_a_store_that_was_named_is_not_started() -> None:
    stages = plan(replace(OPTIONS, redis_url="redis://elsewhere:1/0"))
    assert [[part.name for part in stage] for stage in stages] == [["scaler", "wnode", "router"]]
    assert {flags(part)["--redis-url"] for part in stages[0]} == {"redis://elsewhere:1/0"}


def test_every_service_is_told_the_store_the_cluster_and_the_level() -> None:
    redis, services = plan(OPTIONS)
    assert redis[0].probes == ((Probe.STORE, "redis://127.0.0.1:6000/0"),)
    for part in services:
        told = flags(part)
        assert told["--redis-url"] == "redis://127.0.0.1:6000/0"
        assert (told["--cluster"], told["--log-level"]) == ("test", "warning")


def test_attention_nodes_learn_the_geometry_and_never_the_path() -> None:
    _, (scaler, weight_node, _) = plan(OPTIONS)
    told = flags(scaler)
    assert KvGeometry.from_dict(json.loads(told["--geometry"])) == GEOMETRY
    assert (told["--attention-nodes"], told["--attention-node-memory"]) == ("2", str(1 << 20))
    assert not [argument for argument in scaler.command if "/cache" in argument or "/models" in argument]
    assert (told["--attention-node-threads"], flags(weight_node)["--threads"]) == ("2", "4")
    # What the weight node says in its handshake is what the attention nodes were told.
    assert (flags(weight_node)["--dtype"], flags(weight_node)["--served-model-id"]) == ("float32", "small")


def test_the_weight_node_rounds_keys_and_values_to_what_the_geometry_says() -> None:
    _, (_, weight_node, _) = plan(OPTIONS)
    assert flags(weight_node)["--kv-cache-dtype"] == "auto"
    _, (_, weight_node, _) = plan(replace(OPTIONS, kv_cache_dtype="fp8"))
    assert flags(weight_node)["--kv-cache-dtype"] == "fp8"


def test_prefix_cache_is_switched_off_by_a_flag_alone() -> None:
    _, (_, weight_node, _) = plan(OPTIONS)
    assert not [word for word in weight_node.command if "prefix-caching" in word]
    _, (_, weight_node, _) = plan(replace(OPTIONS, enable_prefix_caching=False))
    assert "--no-enable-prefix-caching" in weight_node.command
    settings = ["--model", "small", "--no-enable-prefix-caching"]
    assert load(WeightNodeSettings, settings, program="wnode").enable_prefix_caching is False


def test_the_scaler_alone_learns_the_policy_and_the_profile() -> None:
    told = replace(OPTIONS, policy_file=Path("/etc/policy.yaml"), profile_file=Path("/etc/profile.json"))
    _, (scaler, *others) = plan(told)
    assert flags(scaler)["--policy-file"] == "/etc/policy.yaml"
    assert flags(scaler)["--profile-file"] == "/etc/profile.json"
    assert not [part for part in others if "--policy-file" in part.command]
    assert not {"--policy-file", "--profile-file"} & set(plan(OPTIONS)[1][0].command)


def test_both_ends_of_the_transport_handle_errors_alike() -> None:
    _, (scaler, weight_node, _) = plan(replace(OPTIONS, transport_error_handling="none"))
    assert {flags(part)["--transport-error-handling"] for part in (scaler, weight_node)} == {"none"}


def test_on_ray_all_that_attention_nodes_reach_is_on_the_node_host() -> None:
    options = replace(OPTIONS, provider="ray", ray_address="head:6379", node_host="10.0.0.5")
    assert not options.is_local
    assert replace(options, ray_address="local").is_local
    stages = plan_stack(
        options,
        checkpoint=Path("/cache/small"),
        geometry=GEOMETRY,
        ports=Ports(redis=6000, weight_nodes=(8200, 8201, 8202)),
        threads=all_threads(8),
        embedded_redis=["valkey-server"],
        redis_password="secret",  # noqa: S106 - of a server that nobody starts
    )
    _, (scaler, weight_node, _) = stages
    told = flags(scaler)
    assert (told["--provider"], told["--ray.address"]) == ("ray", "head:6379")
    assert told["--redis-url"] == "redis://:secret@10.0.0.5:6000/0"
    # Threads of attention nodes follow from what Ray gives them; the weight node has this machine alone.
    assert told["--attention-node-threads"] == "0"
    told = flags(weight_node)
    assert (told["--address"], told["--doorbell-host"]) == ("10.0.0.5:8200", "10.0.0.5")
    assert (told["--threads"], told["--threads-beside-attention"]) == ("8", "8")


def test_a_weight_node_on_ray_is_started_by_its_host_and_found_by_its_lease() -> None:
    options = replace(
        OPTIONS,
        provider="ray",
        ray_address="head:6379",
        node_host="10.0.0.5",
        weight_node_provider="ray",
        weight_node_cpus=4.0,
        weight_node_resources='{"weights": 1}',
        max_model_len=512,
        common_flags=("--tracing.otlp-endpoint=http://127.0.0.1:4317",),
    )
    stages = plan_stack(
        options,
        checkpoint=Path("/shared/small"),
        geometry=replace(GEOMETRY, model_id="small, but good"),
        ports=Ports(redis=6000, weight_nodes=(8200, 8201, 8202)),
        threads=all_threads(8),
        embedded_redis=["valkey-server"],
        redis_password="secret",  # noqa: S106 - of a server that nobody starts
        weight_bytes=1000,
    )
    host = stages[1][1]
    url = "redis://:secret@10.0.0.5:6000/0"
    assert (host.name, host.probes) == ("wnode", ((Probe.MEMBER, member_address("w-1", url)),))
    assert host.command[:3] == (sys.executable, "-m", "kernelflume.scaler.weight_host")
    settings = load(WeightHostSettings, list(host.command[3:]), program="host")
    assert (settings.ray.address, settings.ray.num_cpus) == ("head:6379", 4.0)
    assert settings.ray.demands(memory_bytes=settings.memory) == {
        "CPU": 4.0,
        "memory": 1000.0,
        "weights": 1.0,
    }
    assert (settings.redis_url, settings.cluster, settings.log_dir) == (url, "test", Path("/logs"))
    command = weight_node_command(settings, Place(ray_node="n", host="10.0.0.9", python="/opt/python"))
    assert command[:3] == ["/opt/python", "-m", "kernelflume.wnode"]
    node = load(WeightNodeSettings, command[3:], program="wnode")
    assert (node.node_id, node.model, node.threads) == ("w-1", "/shared/small", 4)
    assert (node.address, node.doorbell_host) == ("10.0.0.9:0", "10.0.0.9")
    assert (node.served_model_id, node.dtype, node.seed) == ("small, but good", "float32", 7)
    assert (node.redis_url, node.cluster, node.max_model_len) == (url, "test", 512)
    assert node.tracing.otlp_endpoint == "http://127.0.0.1:4317"
    assert node.exit_with_parent


def test_several_weight_nodes_have_names_ports_roles_and_devices_of_their_own() -> None:
    roles = (WeightNodeRole.PREFILL, WeightNodeRole.BOTH, WeightNodeRole.DECODE)
    options = replace(OPTIONS, weight_node_roles=roles, devices=("cuda:0", "cuda:1"))
    _, (_, *weight_nodes, router) = plan(options)
    assert [part.name for part in weight_nodes] == ["wnode-1", "wnode-2", "wnode-3"]
    assert [part.title for part in weight_nodes] == [
        "weight node w-1 (prefill)",
        "weight node w-2",
        "weight node w-3 (decode)",
    ]
    assert all(part.is_replaceable for part in weight_nodes)
    told = [load(WeightNodeSettings, list(part.command[3:]), program="wnode") for part in weight_nodes]
    assert [node.node_id for node in told] == ["w-1", "w-2", "w-3"]
    assert [node.address for node in told] == ["127.0.0.1:8200", "127.0.0.1:8201", "127.0.0.1:8202"]
    assert [node.role for node in told] == list(roles)
    assert [node.device for node in told] == ["cuda:0", "cuda:1", "cuda:0"]
    assert "--placement.policy" not in router.command
    _, (_, alone, router) = plan(replace(OPTIONS, placement_policy="unified"))
    assert flags(router)["--placement.policy"] == "unified"
    assert (alone.name, alone.title, alone.is_replaceable) == ("wnode", "weight node", False)


def test_several_weight_nodes_on_ray_are_found_by_their_names() -> None:
    options = replace(
        OPTIONS,
        provider="ray",
        weight_node_provider="ray",
        redis_url="redis://s:1/0",
        weight_node_roles=(WeightNodeRole.PREFILL, WeightNodeRole.DECODE),
    )
    [(_, *hosts, _)] = plan(options)
    assert [host.probes[0][1] for host in hosts] == ["w-1@redis://s:1/0", "w-2@redis://s:1/0"]
    settings = [load(WeightHostSettings, list(host.command[3:]), program="host") for host in hosts]
    assert [host.node_id for host in settings] == ["w-1", "w-2"]
    assert [host.weight_node_args[:2] for host in settings] == [["--role", "prefill"], ["--role", "decode"]]


@pytest.mark.parametrize("policy", get_args(PlacementPolicy))
def test_the_router_knows_every_policy(policy: str) -> None:
    assert load(RouterSettings, ["--model=m", f"--placement.policy={policy}"], program="r").placement.policy
    assert len(get_args(PlacementPolicy)) == len(PolicyName)


def test_roles_of_weight_nodes() -> None:
    both, prefill, decode = WeightNodeRole.BOTH, WeightNodeRole.PREFILL, WeightNodeRole.DECODE
    assert chosen_roles(None, "") == (both,)
    assert chosen_roles(2, "") == (both, both)
    assert chosen_roles(None, "prefill,decode,decode") == (prefill, decode, decode)
    for number, roles, reason in (
        (2, "prefill,decode,both", "3 roles for 2 weight nodes"),
        (None, "decode,decode", "takes prompts"),
        (None, "prefill", "takes what follows"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            chosen_roles(number, roles)


def test_on_one_machine_nothing_of_ray_is_told_and_loopback_does() -> None:
    _, (scaler, weight_node, _) = plan(OPTIONS)
    assert flags(scaler)["--provider"] == "process"
    assert "--ray.address" not in scaler.command
    assert flags(weight_node)["--doorbell-host"] == "127.0.0.1"


def test_clients_use_the_model_s_name_as_it_was_given_unless_others_are_named() -> None:
    router = plan(OPTIONS)[1][-1]
    assert flags(router)["--served-model-name"] == "/models/small"
    router = plan(replace(OPTIONS, served_model_names=("a", "b")))[1][-1]
    assert flags(router)["--served-model-name"] == "a,b"
    assert flags(router)["--model"] == "/cache/small"


def test_a_limit_of_length_is_told_only_when_given() -> None:
    assert not [part for part in plan(OPTIONS)[1] if "--max-model-len" in part.command]
    limited = plan(replace(OPTIONS, max_model_len=512))[1]
    assert [part.name for part in limited if "--max-model-len" in part.command] == ["wnode", "router"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("node.example", "http://node.example:8000"),
    ],
)
def test_the_url_is_one_that_this_machine_reaches(host: str, url: str) -> None:
    assert base_url(host, 8000) == url


@pytest.mark.parametrize(
    ("num_cpus", "num_nodes", "weight_node", "beside", "attention_node"),
    [
        (0, 2, 1, 1, 1),
        (1, 1, 1, 1, 1),
        (2, 1, 2, 1, 1),
        (2, 2, 2, 1, 1),
        (2, 5, 2, 1, 1),
        (16, 0, 16, 1, 15),
        (16, 2, 16, 2, 7),
        (16, 3, 16, 1, 5),
    ],
)
def test_cores_are_shared(
    num_cpus: int, num_nodes: int, weight_node: int, beside: int, attention_node: int
) -> None:
    assert divide_threads(num_cpus, num_nodes) == ThreadBudget(weight_node, beside, attention_node)


@pytest.mark.parametrize(
    ("num_cpus", "num_weight_nodes", "weight_node", "beside", "attention_node"),
    [(2, 2, 1, 1, 1), (2, 3, 1, 1, 1), (16, 2, 8, 1, 7), (16, 4, 4, 1, 6), (17, 2, 8, 1, 7)],
)
def test_weight_nodes_share_cores_as_well(
    num_cpus: int, num_weight_nodes: int, weight_node: int, beside: int, attention_node: int
) -> None:
    shared = divide_threads(num_cpus, 2, num_weight_nodes=num_weight_nodes)
    assert shared == ThreadBudget(weight_node, beside, attention_node)
    assert all_threads(num_cpus, num_weight_nodes=num_weight_nodes).weight_node == weight_node


GIB = 1024**3


def warnings(num_cpus: int = 2, **options: int) -> tuple[str, ...]:
    grown = replace(OPTIONS, attention_node_memory_bytes=GIB, **options)  # type: ignore[arg-type]
    return growth_warnings(grown, available_bytes=5 * GIB, num_cpus=num_cpus)


def test_memory_for_what_the_policy_may_grow_to() -> None:
    assert warnings() == warnings(most_attention_nodes=5) == ()
    [warning] = warnings(most_attention_nodes=6)
    assert warning == (
        "maximum_nodes: 6 attention nodes of 1.0 GiB need 6.0 GiB, and 5.0 GiB of memory are available: 5 fit"
    )
    [warning] = warnings(most_attention_nodes=5, num_standby=2)
    assert warning.startswith("maximum_nodes: 5 attention nodes and 2 that stand by of 1.0 GiB need 7.0 GiB")
    assert warning.endswith("3 fit")


def test_threads_for_what_the_policy_may_grow_to() -> None:
    assert warnings(num_cpus=9, most_attention_nodes=4, attention_node_threads=2) == ()
    [warning] = warnings(num_cpus=9, most_attention_nodes=4)
    assert warning == (
        "provider.node_threads: 4 attention nodes (maximum_nodes) of 4 threads share 9 cores; "
        "2 would be their share"
    )


def test_nodes_elsewhere_need_nothing_here() -> None:
    assert (
        growth_warnings(
            replace(OPTIONS, provider="ray", most_attention_nodes=99), available_bytes=0, num_cpus=1
        )
        == ()
    )


def test_the_policy_s_threads_are_each_attention_node_s() -> None:
    assert divide_threads(8, 2, node_threads=2) == ThreadBudget(
        weight_node=8, weight_node_beside_attention=4, attention_node=2
    )


def test_devices_are_passed_on_only_where_they_were_asked_for() -> None:
    def words(**changes: Any) -> str:
        stages = plan(replace(OPTIONS, **changes))
        return " ".join(word for stage in stages for part in stage for word in part.command)

    assert "--device" not in words()
    assert "--attention-node-devices" not in words()
    asked = words(devices=("cuda:0",), attention_devices=("cuda:1", "cuda:2"))
    assert "--device cuda:0" in asked
    assert '--attention-node-devices ["cuda:1", "cuda:2"]' in asked


def test_dummy_weights_are_told_to_all_who_know_the_model() -> None:
    _, (_, plain, plain_router) = plan(OPTIONS)
    _, (_, wnode, router) = plan(replace(OPTIONS, load_format="dummy"))
    assert "--load-format" not in {*flags(plain), *flags(plain_router)}
    # The seed is part of the model's revision, which the router asks of weight nodes.
    for part in (wnode, router):
        assert (flags(part)["--load-format"], flags(part)["--seed"]) == ("dummy", "7")


def test_keys_and_values_on_gpus_are_not_counted_against_host_memory() -> None:
    on_gpus = replace(OPTIONS, devices=("cuda",), attention_devices=("cuda",))
    assert OPTIONS.uses_host_memory
    assert not on_gpus.uses_host_memory

"""Names, ordinals and faults of a StatefulSet's pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelflume.scaler.providers.pods import (
    Pod,
    Watched,
    first_look,
    highest_ordinal_first,
    judge,
    next_ordinal,
    ordinal_of,
    replicas_needed,
)

RUNNING = Pod(uid="u", phase="Running")


@pytest.mark.parametrize(
    ("node_id", "ordinal"),
    [
        ("kf-0", 0),
        ("kf-12", 12),
        ("kf-012", None),
        ("kf", None),
        ("kf-", None),
        ("other-1", None),
        ("kf-x", None),
    ],
)
def test_a_node_id_is_a_pod_s_name(node_id: str, ordinal: int | None) -> None:
    assert ordinal_of("kf", node_id) == ordinal


def test_victims_go_from_the_highest_ordinal_down_after_those_that_are_no_pods() -> None:
    order = highest_ordinal_first("kf", ["kf-2", "a-7", "kf-10", "kf-0"])
    assert order == ("a-7", "kf-10", "kf-2", "kf-0")


@pytest.mark.parametrize(
    ("num_replicas", "taken", "expected"),
    [
        (0, [], 0),
        (2, [], 0),
        (2, ["kf-0"], 1),
        (2, ["kf-0", "kf-1"], 2),
        (3, ["kf-0", "kf-2"], 1),
        (1, ["a-0"], 0),
    ],
)
def test_the_lowest_free_pod_is_next(num_replicas: int, taken: list[str], expected: int) -> None:
    assert next_ordinal("kf", num_replicas, taken) == expected


@pytest.mark.parametrize(("used", "expected"), [([], 0), (["kf-0"], 1), (["kf-3", "kf-1"], 4), (["a-9"], 0)])
def test_replicas_reach_up_to_the_highest_pod_in_use(used: list[str], expected: int) -> None:
    assert replicas_needed("kf", used) == expected


@pytest.mark.parametrize(
    ("pod", "fault"),
    [
        (RUNNING, None),
        (None, "its pod is gone"),
        (replace(RUNNING, uid="other"), "its pod was replaced"),
        (replace(RUNNING, is_leaving=True), "its pod was deleted"),
        (replace(RUNNING, phase="Failed", reason="Evicted: disk"), "its pod failed: Evicted: disk"),
        (replace(RUNNING, num_restarts=1), None),
        (
            replace(RUNNING, num_restarts=2, last_end="code 137 (OOMKilled)"),
            "its container ended with code 137 (OOMKilled)",
        ),
        (replace(RUNNING, waiting_for="ContainerCreating"), None),
        (
            replace(RUNNING, waiting_for="ErrImagePull: no such image"),
            "its container cannot start: ErrImagePull: no such image",
        ),
    ],
)
def test_what_ends_a_node_is_told(pod: Pod | None, fault: str | None) -> None:
    assert judge(Watched(uid="u", num_restarts=1), pod) == (Watched(uid="u", num_restarts=1), fault)


def test_a_pod_that_is_not_there_yet_is_waited_for() -> None:
    watched, fault = judge(first_look(None), None)
    assert fault is None
    assert judge(watched, RUNNING) == (Watched(uid="u"), None)


def test_an_earlier_pod_of_the_name_is_not_the_one() -> None:
    watched = first_look(replace(RUNNING, uid="old", is_leaving=True))
    assert judge(watched, replace(RUNNING, uid="old", is_leaving=True)) == (watched, None)
    watched, fault = judge(watched, RUNNING)
    assert (watched.uid, fault) == ("u", None)


def test_restarts_before_the_launch_do_not_count() -> None:
    pod = replace(RUNNING, num_restarts=4)
    assert judge(first_look(pod), pod)[1] is None

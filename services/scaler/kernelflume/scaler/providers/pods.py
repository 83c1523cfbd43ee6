"""What the pods of a StatefulSet mean to the scaler. Pure: names, ordinals and faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_HOPELESS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons for which a container waits that do not pass by themselves within a scale-up's deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod, as far as it matters here."""

    uid: str
    phase: str
    is_leaving: bool = False
    """Somebody has deleted it, and it is ending."""
    reason: str = ""
    """Why the pod as a whole failed, such as Evicted."""
    num_restarts: int = 0
    """Of the attention node's container."""
    waiting_for: str = ""
    """Why that container does not run, such as ImagePullBackOff, with the message."""
    last_end: str = ""
    """How it ended last, such as `code 137 (OOMKilled)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A pod that was launched, as it was when it was first seen."""

    uid: str = ""
    """Empty until it is there."""
    num_restarts: int = 0
    earlier_uid: str = ""
    """A pod of that name which was still ending at the launch: not the one."""


def pod_name(stateful_set: str, ordinal: int) -> str:
    """Return the name of a pod, which is its node id too."""
    return f"{stateful_set}-{ordinal}"


def ordinal_of(stateful_set: str, node_id: str) -> int | None:
    """Return the ordinal of a node, or None if it is no pod of this StatefulSet."""
    prefix, _, number = node_id.rpartition("-")
    is_ordinal = number.isascii() and number.isdigit() and str(int(number)) == number
    return int(number) if prefix == stateful_set and is_ordinal else None


def highest_ordinal_first(stateful_set: str, node_ids: Sequence[str]) -> tuple[str, ...]:
    """Order nodes as a StatefulSet can end them; those that are none of its pods come first."""

    def key(node_id: str) -> tuple[bool, int]:
        ordinal = ordinal_of(stateful_set, node_id)
        return (ordinal is not None, -(ordinal or 0))

    return tuple(sorted(node_ids, key=key))


def next_ordinal(stateful_set: str, num_replicas: int, taken: Collection[str]) -> int:
    """Return the lowest ordinal that is not taken; it needs one more replica if it is ``num_replicas``.

    A pod that nobody uses comes before a new one: it is left from a scale-up that failed, or took the place
    of a pod that was lost.
    """
    free = (ordinal for ordinal in range(num_replicas) if pod_name(stateful_set, ordinal) not in taken)
    return next(free, num_replicas)


def replicas_needed(stateful_set: str, used: Collection[str]) -> int:
    """Return the fewest replicas with which every used node is there."""
    ordinals = (ordinal_of(stateful_set, node_id) for node_id in used)
    return max((ordinal + 1 for ordinal in ordinals if ordinal is not None), default=0)


def first_look(pod: Pod | None) -> Watched:
    """Return what to remember of the pod that has the name of a node which is launched now."""
    if pod is None:
        return Watched()
    if pod.is_leaving:
        return Watched(earlier_uid=pod.uid)
    return Watched(uid=pod.uid, num_restarts=pod.num_restarts)


def judge(watched: Watched, pod: Pod | None) -> tuple[Watched, str | None]:
    """Return what to remember of a launched pod, and how it ended or why it cannot start, if so."""
    if pod is None:
        return watched, "its pod is gone" if watched.uid else None
    if pod.uid == watched.earlier_uid:
        return watched, None
    if not watched.uid:
        watched = replace(watched, uid=pod.uid)
    return watched, _fault(watched, pod)


def _fault(watched: Watched, pod: Pod) -> str | None:
    if pod.uid != watched.uid:
        return "its pod was replaced"
    if pod.is_leaving:
        return "its pod was deleted"
    if pod.phase in ("Failed", "Succeeded"):
        return f"its pod {pod.phase.lower()}{f': {pod.reason}' if pod.reason else ''}"
    if pod.num_restarts > watched.num_restarts:
        return f"its container ended{f' with {pod.last_end}' if pod.last_end else ''}"
    if pod.waiting_for.partition(":")[0] in _HOPELESS:
        return f"its container cannot start: {pod.waiting_for}"
    return None

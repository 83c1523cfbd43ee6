"""What every simulation assumes, as data: each assumption with where it is from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kernelflume.runtime.yamltext import parse_mapping


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that is taken to be so."""

    topic: str
    assumption: str
    source: str


@cache
def assumptions() -> tuple[Assumption, ...]:
    """Return all of them, in the order of the file ``data/assumptions.yaml``."""
    text = (files("kernelflume.scaler.sim") / "data" / "assumptions.yaml").read_text(encoding="utf-8")
    return tuple(
        Assumption(topic, entry["assumption"], entry["source"])
        for topic, entries in parse_mapping(text).items()
        for entry in entries
    )

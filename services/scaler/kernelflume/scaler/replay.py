"""Make logged decisions again and compare: ``python -m kernelflume.scaler.replay FILE``.

FILE holds the lines of ``scaler.decision_log``, alone or inside the scaler's JSON log lines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kernelflume.scaler.decision_log import DecisionRecord
from kernelflume.scaler.sizing import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kernelflume.scaler.sizing import Sizing


def records(lines: Iterable[str]) -> Iterator[DecisionRecord]:
    """Yield the decisions among log lines; other lines are passed over.

    Raises:
        ValueError: a decision is of another schema.
    """
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if not isinstance(fields, dict):
            continue
        message = fields.get("message", "")
        if isinstance(message, str) and message.startswith('{"schema"'):
            yield DecisionRecord.from_json(message)
        elif "sizing" in fields:
            yield DecisionRecord.from_json(line)


def decide_again(record: DecisionRecord) -> Sizing:
    """Return what the present code decides on a record's inputs."""
    sizing, _ = size(
        record.view, record.state, record.policy, profile=record.profile, token_bytes=record.token_bytes
    )
    return sizing


def main(path: str) -> int:
    """Print every decision that comes out differently; return how many those are."""
    num_records = num_different = 0
    with Path(path).open(encoding="utf-8") as lines:
        for record in records(lines):
            num_records += 1
            again = decide_again(record)
            if again != record.sizing:
                num_different += 1
                sys.stdout.write(f"{record.time}: was {record.sizing}\n{record.time}: now {again}\n")
    sys.stdout.write(f"{num_records} decisions, {num_different} different\n")
    return num_different


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m kernelflume.scaler.replay FILE")
    sys.exit(min(1, main(sys.argv[1])))

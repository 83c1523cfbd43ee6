"""The example policy of the documentation."""

from __future__ import annotations

from pathlib import Path

import yaml

from kernelflume.scaler.scaling_policy import ScalingPolicy

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_names_every_setting_with_its_default() -> None:
    text = (DOCS / "examples" / "policy.yaml").read_text()
    assert list(yaml.safe_load(text)) == list(ScalingPolicy.model_fields)
    assert ScalingPolicy.parse(text) == ScalingPolicy()


def test_the_guide_speaks_of_every_setting() -> None:
    guide = (DOCS / "scaling.md").read_text()
    assert not [name for name in ScalingPolicy.model_fields if f"`{name}`" not in guide]

"""Mean, spread and percentiles of a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTILES = (50, 90, 95, 99)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile, linear between the two next to it; None of no values."""
    return float(np.percentile(np.asarray(values, np.float64), share)) if len(values) else None


def summary_ms(name: str, values_s: Sequence[float]) -> dict[str, float | None]:
    """Return the figures of a time as `vllm bench serve` names them, in milliseconds; None of no values.

    Args:
        name: such as ttft.
        values_s: seconds.
    """
    values = 1000.0 * np.asarray(values_s, np.float64)
    if not len(values):
        keys = [
            f"{kind}_{name}_ms" for kind in ("mean", "median", "std", *(f"p{share}" for share in PERCENTILES))
        ]
        return dict.fromkeys(keys)
    figures: dict[str, float | None] = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    for share, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True):
        figures[f"p{share}_{name}_ms"] = float(value)
    return figures

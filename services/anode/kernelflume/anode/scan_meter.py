"""How fast the kernel scans keys and values: the attention bandwidth that the scaling policy reads."""

from __future__ import annotations

from collections import deque
from statistics import median

MIN_STEP_BYTES = 64 * 1024**2
"""A step that reads less in all layers may find some of it in the caches."""
MIN_CALL_BYTES = 256 * 1024
"""A kernel call that reads less is mostly its start."""
RECENT_S = 5.0
_MAX_SCANS = 512
_MIN_SCANS = 8


class ScanMeter:
    """Rates of the latest scans, one a layer. Owned by the step loop's thread."""

    def __init__(self, *, num_layers: int) -> None:
        self._num_layers = num_layers
        self._scans: deque[tuple[float, float]] = deque(maxlen=_MAX_SCANS)
        """(when, bytes a second)"""

    def countable_bytes(self, *, num_rows: int, num_calls: int, layer_bytes: int) -> int:
        """Return ``layer_bytes`` if the scans of such a step are worth timing, else 0.

        Rows of a prompt share what is read: their time is computation's, not the memory's.

        Args:
            num_rows: rows of the step.
            num_calls: sequences of the step; each is a kernel call a layer.
            layer_bytes: bytes of keys and values that the step reads in one layer.
        """
        is_decode = num_rows == num_calls
        is_large = layer_bytes * self._num_layers >= MIN_STEP_BYTES and (
            layer_bytes >= num_calls * MIN_CALL_BYTES
        )
        return layer_bytes if is_decode and is_large else 0

    def note(self, num_bytes: int, *, started_at_s: float, ended_at_s: float) -> None:
        """Note that the scan of a layer read so many bytes."""
        if ended_at_s > started_at_s:
            self._scans.append((ended_at_s, num_bytes / (ended_at_s - started_at_s)))

    def bytes_per_s(self, now_s: float) -> float:
        """Return the median of the last seconds, 0 if too few scans fell into them."""
        rates = [rate for when, rate in self._scans if now_s - when <= RECENT_S]
        return median(rates) if len(rates) >= _MIN_SCANS else 0.0

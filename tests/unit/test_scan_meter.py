"""Which scans of keys and values count, and for how long."""

from __future__ import annotations

from kernelflume.anode.scan_meter import MIN_CALL_BYTES, MIN_STEP_BYTES, RECENT_S, ScanMeter

LAYER_BYTES = MIN_STEP_BYTES // 4


def test_large_decode_steps_count_and_no_others() -> None:
    meter = ScanMeter(num_layers=4)
    assert meter.countable_bytes(num_rows=2, num_calls=2, layer_bytes=LAYER_BYTES) == LAYER_BYTES
    # Fits the caches; rows of a prompt; many short sequences.
    assert meter.countable_bytes(num_rows=2, num_calls=2, layer_bytes=LAYER_BYTES - 1) == 0
    assert meter.countable_bytes(num_rows=3, num_calls=2, layer_bytes=LAYER_BYTES) == 0
    num_calls = LAYER_BYTES // MIN_CALL_BYTES + 1
    assert meter.countable_bytes(num_rows=num_calls, num_calls=num_calls, layer_bytes=LAYER_BYTES) == 0


def test_the_rate_is_the_median_of_recent_scans() -> None:
    meter = ScanMeter(num_layers=4)
    for number in range(8):
        assert meter.bytes_per_s(number) == 0.0  # too few so far
        seconds = 1.0 if number == 3 else 0.5  # one was disturbed
        meter.note(1000, started_at_s=number * 0.1, ended_at_s=number * 0.1 + seconds)
    assert meter.bytes_per_s(1.3) == 2000.0
    assert meter.bytes_per_s(1.3 + RECENT_S) == 0.0


def test_a_clock_that_did_not_move_gives_no_rate() -> None:
    meter = ScanMeter(num_layers=4)
    for _ in range(20):
        meter.note(1000, started_at_s=1.0, ended_at_s=1.0)
    assert meter.bytes_per_s(1.0) == 0.0

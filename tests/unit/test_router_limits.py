from __future__ import annotations

import pytest

from kernelflume.core.apikeys import KeyLimits
from kernelflume.router.limits import Bucket, KeyUsage, Usages, duration


def test_a_bucket_fills_evenly_and_never_over() -> None:
    bucket = Bucket(60, 0.0)
    bucket.charge(60, 0.0)
    assert bucket.level(0.0) == 0
    assert bucket.level(30.0) == 30
    assert bucket.level(1000.0) == 60
    assert bucket.wait_s(10, 0.0) == 10
    assert bucket.wait_s(10_000, 0.0) == 60
    bucket.charge(30, 0.0)
    assert bucket.level(0.0) == -30
    assert bucket.reset_s(0.0) == 90


def test_another_size_is_as_full() -> None:
    bucket = Bucket(60, 0.0)
    bucket.charge(30, 0.0)
    assert bucket.resized(600, 0.0).level(0.0) == pytest.approx(300)


def test_requests_a_minute() -> None:
    usage = KeyUsage(KeyLimits(requests_per_minute=2), 0.0)
    assert usage.take_request(0.0) is None
    assert usage.take_request(0.0) is None
    refusal = usage.take_request(0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("rate_limit_exceeded", 30)
    assert usage.num_requests == 2
    assert usage.take_request(30.0) is None


def test_tokens_a_minute_are_charged_as_they_are_known() -> None:
    usage = KeyUsage(KeyLimits(tokens_per_minute=100), 0.0)
    assert usage.take_prompt(60, 0.0) is None
    refusal = usage.take_prompt(60, 0.0)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(12)
    usage.charge_tokens(70, 0.0)
    assert usage.headers(0.0) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m18s",
    }
    assert usage.take_request(0.0) is not None
    assert usage.take_request(20.0) is None


def test_a_prompt_larger_than_a_minute_needs_the_whole_minute() -> None:
    usage = KeyUsage(KeyLimits(tokens_per_minute=100), 0.0)
    assert usage.take_prompt(500, 0.0) is None
    assert usage.take_prompt(1, 60.0) is not None


def test_requests_at_once() -> None:
    usage = KeyUsage(KeyLimits(concurrent_requests=1), 0.0)
    assert usage.take_request(0.0) is None
    refusal = usage.take_request(0.0)
    assert refusal is not None
    assert refusal.code == "concurrency_limit_exceeded"
    assert usage.headers(0.0) == {}


def test_a_refused_request_takes_nothing() -> None:
    usage = KeyUsage(KeyLimits(concurrent_requests=1, requests_per_minute=2), 0.0)
    assert usage.take_request(0.0) is None
    assert usage.take_request(0.0) is not None
    assert usage.headers(0.0)["x-ratelimit-remaining-requests"] == "1"


def test_usages_follow_their_limits_and_forget_what_is_as_good_as_new() -> None:
    usages = Usages(max_idle=2)
    limits = KeyLimits(requests_per_minute=10)
    used = usages.of("a", limits, 0.0)
    used.take_request(0.0)
    usages.of("b", limits, 0.0)
    usages.of("c", limits, 0.0)
    assert usages.of("a", limits, 0.0) is used
    assert usages.of("a", KeyLimits(requests_per_minute=20), 0.0).headers(0.0) == {
        "x-ratelimit-limit-requests": "20",
        "x-ratelimit-remaining-requests": "18",
        "x-ratelimit-reset-requests": "6s",
    }
    assert usages.of("a", KeyLimits(), 0.0).headers(0.0) == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0001, "1ms"), (0.25, "250ms"), (6, "6s"), (6.1, "7s"), (62, "1m2s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""What a key may use a minute, as buckets that fill evenly. Pure: time is a parameter.

A bucket holds a minute's allowance and fills at that rate, so that there is no edge of a minute at which
everybody rushes in. Tokens are charged as they are known: those of a prompt when the request is taken,
generated ones as they come. A bucket may so fall below nothing, by what the running requests generate;
until it is filled again new requests are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.core.apikeys import KeyLimits

_MINUTE_S = 60.0


class Bucket:
    """One allowance."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Return what is left at ``now``."""
        filled = self._level + (now - self._at) * self.per_minute / _MINUTE_S
        return min(float(self.per_minute), filled)

    def charge(self, amount: float, now: float) -> None:
        """Take an amount, also more than is left."""
        self._level = self.level(now) - amount
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount`` is there; a larger one than a minute's needs the whole."""
        missing = min(amount, self.per_minute) - self.level(now)
        return max(0.0, missing * _MINUTE_S / self.per_minute)

    def reset_s(self, now: float) -> float:
        """Return the seconds until the bucket is full."""
        return self.wait_s(self.per_minute, now)

    def resized(self, per_minute: int, now: float) -> Bucket:
        """Return a bucket of another size that is as full."""
        other = Bucket(per_minute, now)
        other.charge(per_minute * (1 - self.level(now) / self.per_minute), now)
        return other


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken now."""

    message: str
    code: str
    retry_after_s: float


class KeyUsage:
    """What one key has used, against its limits. Owned by ``Usages``."""

    def __init__(self, limits: KeyLimits, now: float) -> None:
        self._limits = limits
        self._requests = _bucket(None, limits.requests_per_minute, now)
        self._tokens = _bucket(None, limits.tokens_per_minute, now)
        self.num_requests = 0
        """Taken and not ended, waiting ones included."""

    def set_limits(self, limits: KeyLimits, now: float) -> None:
        """Go on under other limits."""
        if limits != self._limits:
            self._requests = _bucket(self._requests, limits.requests_per_minute, now)
            self._tokens = _bucket(self._tokens, limits.tokens_per_minute, now)
            self._limits = limits

    def take_request(self, now: float) -> Refusal | None:
        """Take one request, or say why not; then nothing was taken."""
        most = self._limits.concurrent_requests
        if most is not None and self.num_requests >= most:
            message = f"this key has {most} requests in progress, which is its limit"
            return Refusal(message, "concurrency_limit_exceeded", 1.0)
        if self._tokens is not None and (wait_s := self._tokens.wait_s(1, now)):
            return self._rate_refusal("tokens", self._tokens, wait_s)
        if self._requests is not None:
            if wait_s := self._requests.wait_s(1, now):
                return self._rate_refusal("requests", self._requests, wait_s)
            self._requests.charge(1, now)
        self.num_requests += 1
        return None

    def take_prompt(self, num_tokens: int, now: float) -> Refusal | None:
        """Charge a prompt, or say why not; then nothing was charged."""
        if self._tokens is None:
            return None
        if wait_s := self._tokens.wait_s(num_tokens, now):
            return self._rate_refusal("tokens", self._tokens, wait_s)
        self._tokens.charge(num_tokens, now)
        return None

    def charge_tokens(self, num_tokens: int, now: float) -> None:
        """Charge tokens that were generated."""
        if self._tokens is not None:
            self._tokens.charge(num_tokens, now)

    def is_fresh(self, now: float) -> bool:
        """Tell whether nothing would be lost by forgetting this."""
        buckets = [bucket for bucket in (self._requests, self._tokens) if bucket is not None]
        return not self.num_requests and all(bucket.reset_s(now) <= 0 for bucket in buckets)

    def headers(self, now: float) -> dict[str, str]:
        """Return OpenAI's headers on rate limits."""
        found: dict[str, str] = {}
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(bucket.level(now))))
                found[f"x-ratelimit-reset-{kind}"] = duration(bucket.reset_s(now))
        return found

    def _rate_refusal(self, kind: str, bucket: Bucket, wait_s: float) -> Refusal:
        message = (
            f"this key has used up its {bucket.per_minute} {kind} a minute; try again in {duration(wait_s)}"
        )
        return Refusal(message, "rate_limit_exceeded", wait_s)


class Usages:
    """The usage of every key that was seen lately."""

    def __init__(self, max_idle: int = 1024) -> None:
        """Remember nothing yet.

        Args:
            max_idle: so many are remembered before those are forgotten that are as good as new.
        """
        self._max_idle = max_idle
        self._usages: dict[str, KeyUsage] = {}

    def of(self, key_id: str, limits: KeyLimits, now: float) -> KeyUsage:
        """Return a key's usage, under these limits from now on."""
        usage = self._usages.get(key_id)
        if usage is None:
            if len(self._usages) >= self._max_idle:
                self._usages = {name: used for name, used in self._usages.items() if not used.is_fresh(now)}
            usage = self._usages[key_id] = KeyUsage(limits, now)
        usage.set_limits(limits, now)
        return usage


def duration(seconds: float) -> str:
    """Return a time as OpenAI's headers write it: ``250ms``, ``6s``, ``1m2s``."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    whole = -(-milliseconds // 1000)
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _bucket(before: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return Bucket(per_minute, now) if before is None else before.resized(per_minute, now)

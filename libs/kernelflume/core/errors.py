"""The one tree of errors that KernelFlume raises.

Every error carries the gRPC-free meaning of a fault; ``kernelflume.rpc.status`` maps it to a status code
and back in one place, and the router maps it to an OpenAI error object.
"""

from __future__ import annotations


class KernelFlumeError(Exception):
    """Base of every error that the product raises on purpose."""


class InvalidRequestError(KernelFlumeError):
    """The caller's input can never work; ``parameter`` names the field at fault where one is known."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class ConfigurationError(KernelFlumeError):
    """A setting stops a service from starting; the message names the setting."""


class UnauthenticatedError(KernelFlumeError):
    """The caller did not prove who it is."""


class NotFoundError(KernelFlumeError):
    """The thing named does not exist (any more)."""


class OverloadedError(KernelFlumeError):
    """A bounded queue is full; try again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(KernelFlumeError):
    """A part that is needed cannot be reached or cannot serve now."""


class DamagedTableError(UnavailableError):
    """The routing table in the store cannot be read, and nobody mends it by itself: a person has to."""


class DeadlineError(KernelFlumeError):
    """A wait ran past its deadline."""


class ConflictError(KernelFlumeError):
    """The state changed under the caller; read it again and decide anew."""


class AlreadyExistsError(ConflictError):
    """The id is taken by something else than what the caller asks for."""


class EpochConflictError(ConflictError):
    """A publish was based on an epoch that is no longer the current one."""

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(f"routing table is at epoch {actual}, not {expected}")
        self.expected = expected
        self.actual = actual


class LifecycleError(KernelFlumeError):
    """An event is not legal in the present state; nothing was changed."""


class HandshakeError(KernelFlumeError):
    """Two nodes do not fit together; the message names both sides' values."""


class PeerLostError(UnavailableError):
    """The transport or a lease says that a peer is gone."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"peer {peer} is lost: {reason}")
        self.peer = peer
        self.reason = reason


class KvPoolExhaustedError(KernelFlumeError):
    """No page is free for a token; the sequence must wait or be recomputed elsewhere."""

"""The real transport: NIXL one-sided writes over UCX. The only module that imports nixl.

Kept from measurements: the progress thread stays off (it spins, and costs a round trip of tens of
milliseconds on few cores), the sync mode is STRICT (the default is unsafe beside a preparing thread), and
every post of a write that was prepared with a notice carries one (an empty one repeats the handle's last).
"""

from __future__ import annotations

import contextlib
import os
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import (
    ConfigurationError,
    HandshakeError,
    LifecycleError,
    PeerLostError,
    UnavailableError,
)
from kernelflume.core.regions import MemoryRegion
from kernelflume.transport.base import Notice, Write, WritePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

ERROR_HANDLING_MODES = ("peer", "none")
"""``peer`` notices a dead peer at the next post; ``none`` is faster (shared memory on one host), but a send
to a dead peer goes on succeeding, so that only deadlines and leases tell."""

_POLLS_BEFORE_CLOSE = 1000
"""About two milliseconds."""


_MEMORY_HOOKS = ("UCX_MEM_MMAP_HOOK_MODE", "none")
"""UCX else patches the C library's memory calls, one by one, and waits at each for other threads to pass:
400 ms of an agent's start. That tells it of memory which goes away behind its cache of registrations; ours is
registered and deregistered by hand. On a GPU it stays: there UCX must hear of freed memory, or it could
export a stale handle once an address is used again."""


def load_library() -> None:
    """Import NIXL, so that a process forked from this one need not; makes no agent and no thread.

    Raises:
        ConfigurationError: nixl is missing.
    """
    try:
        import nixl_cu13._api  # noqa: PLC0415 - optional dependency, named in the error
    except ImportError as error:
        raise ConfigurationError(
            f"the nixl transport needs `pip install 'kernelflume[node]'`: {error}"
        ) from error
    del nixl_cu13


class NixlPlan:
    """Prepared transfer handles to one peer, in the order of the writes."""

    def __init__(
        self,
        peer: str,
        num_writes: int,
        lists: tuple[Any, Any],
        make: Callable[[int], Any],
        *,
        silent: bool,
    ) -> None:
        """``make`` makes the handle of a write; those of silent writes are made when first posted."""
        self.peer = peer
        self.silent = silent
        self.handles: list[Any] = [None if silent else make(index) for index in range(num_writes)]
        self.active = [False] * num_writes
        self._make = make
        self._lists = lists
        self.released = False

    def __len__(self) -> int:
        return len(self.handles)

    def handle(self, index: int) -> Any:
        """Return the handle of a write."""
        handle = self.handles[index]
        if handle is None:
            handle = self.handles[index] = self._make(index)
        return handle

    def release(self) -> None:
        """Release the handles; posting on a released handle would crash, so the transport checks."""
        if self.released:
            return
        self.released = True
        for item in (*filter(None, self.handles), *self._lists):
            # A transfer to a dead peer cannot be cancelled; nixl then keeps the handle until the agent ends.
            with contextlib.suppress(Exception):
                item.release()


class NixlTransport:
    """One NIXL agent; see ``transport.base.Transport``."""

    def __init__(
        self,
        name: str,
        *,
        error_handling: str = "peer",
        memory: str = "DRAM",
        on_sent: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Create the agent.

        Args:
            name: the agent's name; contains an incarnation, since notices are keyed by name alone.
            error_handling: one of ``ERROR_HANDLING_MODES``; both ends must use the same.
            memory: DRAM or VRAM, where keys and values travel between; both ends must use the same.
            on_sent: called with the peer when a notice left later than its post, from the thread that polls:
                a peer that sleeps by then must be woken again.

        Raises:
            ConfigurationError: nixl is missing, or the mode is unknown.
        """
        if error_handling not in ERROR_HANDLING_MODES:
            raise ConfigurationError(
                f"transport_error_handling: {error_handling!r} is none of {', '.join(ERROR_HANDLING_MODES)}"
            )
        load_library()
        from nixl_cu13._api import (  # noqa: PLC0415 - optional dependency
            nixl_agent,
            nixl_agent_config,
            nixl_thread_sync_t,
        )

        if memory == "DRAM":
            os.environ.setdefault(*_MEMORY_HOOKS)  # read when the first agent loads UCX
        self.name = name
        self.kind = f"nixl {version('nixl-cu13')} ucx errors={error_handling} memory={memory}"
        self._agent = nixl_agent(
            name,
            nixl_agent_config(
                enable_prog_thread=False,
                backends=[],
                sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
            ),
        )
        self._agent.create_backend("UCX", {"ucx_error_handling_mode": error_handling})
        self._plans: dict[str, list[NixlPlan]] = {}
        self._registered: dict[int, Any] = {}
        self._under_way: list[tuple[NixlPlan, int]] = []
        """Writes that were not done when posted; of the polling thread alone."""
        self._on_sent = on_sent
        self._lock = threading.Lock()

    def register(self, memory: np.ndarray) -> MemoryRegion:
        """Register a contiguous array of host memory."""
        return self._register(MemoryRegion(memory.ctypes.data, memory.nbytes))

    def register_device(self, address: int, num_bytes: int, device: int) -> MemoryRegion:
        """Register device memory; its context must be current when the agent is created, and now."""
        return self._register(MemoryRegion(address, num_bytes, "VRAM", device))

    def _register(self, region: MemoryRegion) -> MemoryRegion:
        self._registered[region.address] = self._agent.register_memory(
            [(region.address, region.num_bytes, region.device, "")], region.kind
        )
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Deregister; no barrier: drain first."""
        descriptors = self._registered.pop(region.address, None)
        if descriptors is not None:
            self._agent.deregister_memory(descriptors)

    def metadata(self) -> bytes:
        """Return the agent's metadata with all regions registered so far."""
        return bytes(self._agent.get_agent_metadata())

    def connect(self, peer: str, metadata: bytes) -> None:
        """Load a peer's metadata."""
        self.disconnect(peer)
        try:
            loaded = self._agent.add_remote_agent(metadata)
        except Exception as error:
            raise HandshakeError(f"metadata of {peer} cannot be loaded: {error}") from error
        loaded_name = loaded.decode() if isinstance(loaded, bytes) else str(loaded)
        if loaded_name != peer:
            self._agent.remove_remote_agent(loaded_name)
            raise HandshakeError(f"metadata is that of {loaded_name}, not of {peer}")
        with self._lock:
            self._plans[peer] = []

    def disconnect(self, peer: str) -> None:
        """Release a peer's plans and forget it."""
        with self._lock:
            plans = self._plans.pop(peer, None)
        if plans is None:
            return
        for plan in plans:
            plan.release()
        try:
            self._agent.remove_remote_agent(peer)
        except Exception:  # noqa: BLE001 - a dead peer may be forgotten already; there is nothing left to undo
            return

    def plan_writes(self, peer: str, writes: Sequence[Write], *, silent: bool = False) -> NixlPlan:
        """Prepare one descriptor list a side, and a handle a write: 0.4 us and 6 us for each."""
        if peer not in self._plans:
            raise PeerLostError(peer, "not connected")
        local = [(w.local.address + w.local_offset, w.num_bytes, w.local.device) for w in writes]
        remote = [(w.remote.address + w.remote_offset, w.num_bytes, w.remote.device) for w in writes]
        try:
            local_list = self._agent.prep_xfer_dlist("", local, writes[0].local.kind)
            remote_list = self._agent.prep_xfer_dlist(peer, remote, writes[0].remote.kind)

            def make(index: int) -> Any:
                return self._agent.make_prepped_xfer(
                    "WRITE", local_list, [index], remote_list, [index], b"" if silent else b"-"
                )

            plan = NixlPlan(peer, len(writes), (local_list, remote_list), make, silent=silent)
        except Exception as error:
            raise PeerLostError(peer, f"writes cannot be prepared: {error}") from error
        with self._lock:
            self._plans[peer].append(plan)
        return plan

    def local_view(self, region: MemoryRegion) -> int:
        """Return a handle by which kernels read a registered region of device memory.

        Raises:
            UnavailableError: this build, or this GPU, has no transfers that a kernel can start.
        """
        descriptors = self._agent.get_xfer_descs(
            [(region.address, region.num_bytes, region.device)], region.kind
        )
        try:
            return int(self._agent.prep_mem_view(descriptors))
        except Exception as error:
            raise UnavailableError(f"no device view of local memory: {error}") from error

    def remote_view(self, peer: str, regions: Sequence[MemoryRegion]) -> int:
        """Return a handle by which kernels write to regions of a peer's device memory, by their index.

        A write must have gone each way before, and the peer must poll meanwhile.

        Raises:
            PeerLostError: the peer is not connected.
            UnavailableError: there is no path to it that a kernel can use.
        """
        if peer not in self._plans:
            raise PeerLostError(peer, "not connected")
        descriptors = self._agent.get_remote_descs(
            [(region.address, region.num_bytes, region.device, peer) for region in regions], regions[0].kind
        )
        try:
            return int(self._agent.prep_mem_view(descriptors))
        except Exception as error:
            raise UnavailableError(f"no device view of {peer}'s memory: {error}") from error

    def release_view(self, view: int) -> None:
        """Release a view that no kernel uses any more."""
        self._agent.release_mem_view(view)

    def post(self, plan: WritePlan, index: int, notice: bytes = b"") -> None:
        """Start a prepared write."""
        live = self._live(plan)
        if live.silent == bool(notice):
            raise LifecycleError("a post needs a notice, unless its write is silent")
        if live.active[index] and not self.is_done(plan, index):
            raise LifecycleError(f"write {index} to {plan.peer} is still under way")
        try:
            state = self._agent.transfer(live.handle(index), notice)
        except Exception as error:
            raise PeerLostError(plan.peer, f"post failed: {error}") from error
        if state == "ERR":
            raise PeerLostError(plan.peer, "post failed")
        live.active[index] = state != "DONE"
        if live.active[index]:
            self._under_way.append((live, index))

    def is_done(self, plan: WritePlan, index: int) -> bool:
        """Ask for a write's state."""
        live = self._live(plan)
        if not live.active[index]:
            return True
        try:
            state = self._agent.check_xfer_state(live.handles[index])
        except Exception as error:
            raise PeerLostError(plan.peer, f"write failed: {error}") from error
        if state == "ERR":
            raise PeerLostError(plan.peer, "write failed")
        live.active[index] = state != "DONE"
        if live.active[index]:
            return False
        if not live.silent:
            self._on_sent(live.peer)
        return True

    def notify(self, peer: str, notice: bytes) -> None:
        """Send a notice alone."""
        try:
            self._agent.send_notif(peer, notice)
        except Exception as error:
            raise PeerLostError(peer, f"notice failed: {error}") from error

    def poll(self) -> list[Notice]:
        """Progress the agent and collect notices."""
        if self._under_way:
            # Only a question for its state sends the notice of a write that was not done at once.
            for write in tuple(self._under_way):  # a preparing thread may append meanwhile
                if not self._is_under_way(*write):
                    self._under_way.remove(write)
        try:
            arrived = self._agent.get_new_notifs()
        except Exception as error:
            raise UnavailableError(f"transport {self.name} cannot progress: {error}") from error
        if not arrived:
            return []
        return [Notice(_text(peer), payload) for peer, payloads in arrived.items() for payload in payloads]

    def close(self) -> None:
        """Disconnect all peers and let the agent go."""
        for peer in list(self._plans):
            self.disconnect(peer)
        # What was under way to a dead peer is given up by progress alone; without it UCX aborts the process.
        for _ in range(_POLLS_BEFORE_CLOSE):
            self.poll()
        del self._agent

    def _is_under_way(self, plan: NixlPlan, index: int) -> bool:
        try:
            return not self.is_done(plan, index)
        except PeerLostError:  # the next call for this peer raises it again, to the one who can act on it
            return False

    def _live(self, plan: WritePlan) -> NixlPlan:
        if not isinstance(plan, NixlPlan):
            raise LifecycleError("a plan of another transport")
        if plan.released:
            raise PeerLostError(plan.peer, "the connection was closed")
        return plan


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name

"""Local attention: rows over the tokens held of their sequences. The only module that picks a kernel.

Planned once a step, run once a layer. Every token held is older than every row, so no mask is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from kernelflume.anode.gpu.device_kernels import choose_device_kernel
from kernelflume.anode.host_pages import HostPages
from kernelflume.core.errors import ConfigurationError
from kernelflume.tensor.kv_format import widened
from kernelflume.tensor.partials import Partial, merge_into

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelflume.anode.kvpool import HeldSequence, KvPool

KERNEL_NAMES = ("auto", "torch", "flashinfer")


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive rows of one sequence, and the keys and values that they attend to."""

    num_rows: int
    sequence: HeldSequence


class StepAttention(Protocol):
    """The attention of one step's rows."""

    def run(self, layer: int, into: Partial) -> None:
        """Attend the queries of one layer, and write the partial of every row into ``into``.

        Rows of a sequence of which no token is held become 0 and -inf.
        """
        ...


class AttentionKernel(Protocol):
    """A way to compute attention on this node."""

    def plan(self, queries: torch.Tensor, shares: Sequence[Share]) -> StepAttention:
        """Prepare all layers of a step.

        Args:
            queries: [num_rows, num_query_heads, head_dim]; read again at every ``run``.
            shares: whose rows those are, in order; together they have ``num_rows`` rows.

        Returns:
            What holds until this kernel's next plan, and no longer.
        """
        ...

    def apart(self) -> AttentionKernel:
        """Return a kernel over the same tokens whose plans and this one's leave each other alone.

        Lanes take turns layer by layer, those of one weight node and of several: each needs its own.
        """
        ...


def choose_kernel(name: str, pool: KvPool) -> AttentionKernel:
    """Return the kernel that a setting names, for a pool.

    Raises:
        ConfigurationError: the kernel cannot run here.
    """
    if name not in KERNEL_NAMES:
        raise ConfigurationError(f"kernel: {name!r} is not one of {', '.join(KERNEL_NAMES)}")
    if isinstance(pool.storage, HostPages):
        if name == "flashinfer":
            raise ConfigurationError("kernel: flashinfer attends in GPU memory; set device=cuda")
        return TorchKernel(pool.storage, pool.geometry.num_kv_heads)
    return choose_device_kernel(name, pool.storage)


class TorchKernel:
    """torch's fused CPU attention, one call a sequence and extent."""

    def __init__(self, pages: HostPages, num_kv_heads: int) -> None:
        self._pages = pages
        self._num_kv_heads = num_kv_heads

    def plan(self, queries: torch.Tensor, shares: Sequence[Share]) -> TorchStep:
        """Prepare a step; see ``AttentionKernel.plan``."""
        views = [tuple(self._pages.view(extent) for extent in share.sequence.extents) for share in shares]
        return TorchStep(queries, [share.num_rows for share in shares], views, self._num_kv_heads)

    def apart(self) -> TorchKernel:
        """Return this kernel, whose plans share nothing."""
        return self


class TorchStep:
    """A planned step; see ``StepAttention``.

    Grouped query heads are rows of their KV head: [num_rows, num_kv_heads * group, head_dim] is attended as
    [1, num_kv_heads, num_rows * group, head_dim].
    """

    def __init__(
        self,
        queries: torch.Tensor,
        row_counts: Sequence[int],
        views: Sequence[Sequence[tuple[torch.Tensor, ...]]],
        num_kv_heads: int,
    ) -> None:
        """Take the rows of each sequence, and ``HostPages.view`` of each of its extents."""
        num_rows, num_query_heads, head_dim = queries.shape
        self._heads_shape = (num_rows, num_kv_heads, num_query_heads // num_kv_heads)
        heads = queries.view(*self._heads_shape, head_dim)
        split = heads.split_with_sizes(list(row_counts))
        self._rows = [_Rows(rows, extents) for rows, extents in zip(split, views, strict=True)]

    def run(self, layer: int, into: Partial) -> None:
        """Attend one layer's queries."""
        partials = [rows.attend(layer) for rows in self._rows]
        dtype = into.out.dtype
        outs = [out if out.dtype is dtype else out.to(dtype) for out, _ in partials]
        torch.cat(outs, out=into.out.view(*self._heads_shape, -1))
        torch.cat([lse for _, lse in partials], out=into.lse.view(self._heads_shape))


class _Rows:
    """The rows of one sequence; all that need not be done again for every layer is done here."""

    def __init__(self, queries: torch.Tensor, extents: Sequence[tuple[torch.Tensor, ...]]) -> None:
        """Take [num_rows, num_kv_heads, group, head_dim] queries, which are read at every ``attend``."""
        self._queries = queries
        self._extents = extents
        self._pieces = list(_pieces([extent[0].shape[2] for extent in extents]))
        self._is_widened = bool(extents) and extents[0][0].dtype is not queries.dtype
        # A single row is attended where it lies.
        self._is_single = queries.shape[0] == 1

    def attend(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [num_rows, num_kv_heads, group, head_dim] and [num_rows, num_kv_heads, group]."""
        queries = self._queries
        if not self._extents:
            return torch.zeros_like(queries), torch.full(queries.shape[:3], -torch.inf)
        heads = queries if self._is_single else self._by_kv_head()
        held = self._held(layer)
        out, lse = _FLASH(heads, *next(held))
        for key, value in held:
            merge_into(out, lse, *_FLASH(heads, key, value))
        if self._is_single:
            return out, lse
        num_rows, num_kv_heads, group, head_dim = queries.shape
        return (
            out.view(num_kv_heads, num_rows, group, head_dim).transpose(0, 1),
            lse.view(num_kv_heads, num_rows, group).transpose(0, 1),
        )

    def _held(self, layer: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give keys and values piece by piece, each [1, num_kv_heads, num_tokens, head_dim]."""
        for piece in self._pieces:
            extents = self._extents[piece]
            key, value = (_joined([extent[2 * layer + kind] for extent in extents]) for kind in (0, 1))
            if not self._is_widened:
                yield key, value
                continue
            # torch attends to no format of 8 bits, and rounding queries to one of 16 would make the result
            # depend on how a sequence is divided. Piece by piece, so that the wide copies stay small.
            _, num_heads, _, head_dim = key.shape
            size = max(1, _WIDENED_NUMBERS // (num_heads * head_dim))
            for keys, values in zip(key.split(size, dim=2), value.split(size, dim=2), strict=True):
                yield widened(keys, self._queries.dtype), widened(values, self._queries.dtype)

    def _by_kv_head(self) -> torch.Tensor:
        """Copy the queries to [1, num_kv_heads, num_rows * group, head_dim]."""
        num_rows, num_kv_heads, group, head_dim = self._queries.shape
        return self._queries.transpose(0, 1).reshape(1, num_kv_heads, num_rows * group, head_dim)


def _pieces(lengths: Sequence[int]) -> Iterator[slice]:
    """Divide extents of so many tokens: one that is long alone, short ones with their neighbours."""
    first = num_tokens = 0
    for index, length in enumerate(lengths):
        if index > first and (length >= _SHORT_TOKENS or num_tokens + length > _JOINED_TOKENS):
            yield slice(first, index)
            first, num_tokens = index, 0
        if length >= _SHORT_TOKENS:
            yield slice(index, index + 1)
            first = index + 1
        else:
            num_tokens += length
    if first < len(lengths):
        yield slice(first, len(lengths))


def _joined(views: list[torch.Tensor]) -> torch.Tensor:
    return views[0] if len(views) == 1 else torch.cat(views, dim=2)


_SHORT_TOKENS = 384
"""Extents shorter than that are copied together and attended in one call: a call, and merging its partial,
takes as long as the copy of a few hundred tokens (benchmarks/extents.py). A pool whose pages are shared and
kept has many of one page."""
_JOINED_TOKENS = 2048
"""Most tokens copied together, so that the copy stays in the cache."""
_WIDENED_NUMBERS = 1 << 20
"""Keys widened at a time, as numbers. Smaller pieces would stay in the cache, but cost more in calls: with
an eighth of it a row over 16K tokens takes half as long again."""
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - no public form returns the lse

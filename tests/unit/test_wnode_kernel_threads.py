"""Kernels use fewer threads while attention nodes compute, and all of them again after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelflume.wnode.kernel_threads import KernelThreads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_count_changes_inside_only() -> None:
    threads = KernelThreads(alone=2, beside=1)
    threads.apply()
    assert torch.get_num_threads() == 2
    with threads.beside_attention():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_the_count_is_restored_after_an_error() -> None:
    threads = KernelThreads(alone=2, beside=1)
    threads.apply()
    with pytest.raises(RuntimeError, match="lost"), threads.beside_attention():
        raise RuntimeError("lost")
    assert torch.get_num_threads() == 2

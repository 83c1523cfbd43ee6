"""What a pool of pages must do, said as simply as possible: the model that the real one is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelflume.anode.block_index import Block
from kernelflume.core.retention import AS_IT_IS, PIN_S, Pinning, Retention


@dataclass(eq=False)
class ModelPage:
    """One page: what was written to it, how many hold it, what it is called."""

    numbers: list[int] = field(default_factory=list)
    num_holders: int = 1
    block: Block | None = None
    is_pinned: bool = False

    def unname(self) -> None:
        self.block, self.is_pinned = None, False


@dataclass(eq=False)
class ModelSequence:
    """One sequence: its tokens, as numbers, their positions, and where they lie."""

    numbers: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    pages: list[ModelPage] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.positions[-1] + 1 if self.positions else 0


@dataclass
class PageModel:
    """All pages that are not empty."""

    num_pages: int
    page_tokens: int
    is_cache: bool
    ttl_s: float
    max_pinned: int = 0
    now: float = 0.0
    sequences: dict[int, ModelSequence] = field(default_factory=dict)
    idle: list[tuple[ModelPage, float]] = field(default_factory=list)
    """Pages that nobody holds, with their last use, the oldest first."""

    @property
    def held(self) -> list[ModelPage]:
        return list({id(page): page for item in self.sequences.values() for page in item.pages}.values())

    @property
    def num_free(self) -> int:
        return self.num_pages - len(self.held)

    @property
    def dropping_order(self) -> list[ModelPage]:
        """Idle pages: those without a pin before those with one."""
        pages = [page for page, _ in self.idle]
        return sorted(pages, key=lambda page: page.is_pinned)

    @property
    def pinned(self) -> list[ModelPage]:
        pages = [*self.held, *(page for page, _ in self.idle)]
        return [page for page in pages if page.is_pinned]

    @property
    def names(self) -> dict[bytes, ModelPage]:
        pages = [*self.held, *(page for page, _ in self.idle)]
        return {page.block.key: page for page in pages if page.block is not None}

    def num_needed(self, sequence: ModelSequence, num_tokens: int) -> int:
        """Pages that an append takes."""
        held = len(sequence.numbers)
        copies = bool(held % self.page_tokens) and sequence.pages[-1].num_holders > 1
        return -(-(held + num_tokens) // self.page_tokens) - len(sequence.pages) + copies

    def append(self, sequence: ModelSequence, start: int, numbers: list[int]) -> None:
        needed = self.num_needed(sequence, len(numbers))
        lacking = max(0, needed - (self.num_free - len(self.idle)))
        dropped = self.dropping_order[:lacking]
        self.idle = [(page, used_at) for page, used_at in self.idle if page not in dropped]
        offset = len(sequence.numbers) % self.page_tokens
        if offset:
            last = sequence.pages[-1]
            if last.num_holders > 1:
                last.num_holders -= 1
                sequence.pages[-1] = ModelPage(last.numbers[:offset])
            else:
                last.unname()
        for index, number in enumerate(numbers):
            if len(sequence.numbers) % self.page_tokens == 0:
                sequence.pages.append(ModelPage())
            sequence.pages[-1].numbers.append(number)
            sequence.numbers.append(number)
            sequence.positions.append(start + index)

    def retract(self, sequence: ModelSequence) -> None:
        sequence.numbers.pop()
        sequence.positions.pop()
        last = sequence.pages[-1]
        if last.num_holders == 1:
            last.unname()
            last.numbers.pop()
        if len(sequence.numbers) % self.page_tokens == 0:
            self._let_go(sequence.pages.pop())

    def release(self, sequence_id: int) -> None:
        for page in reversed(self.sequences.pop(sequence_id).pages):
            self._let_go(page)

    def blocks_of(self, sequence: ModelSequence, keys: list[bytes]) -> list[Block]:
        """Return the blocks of the sequence that can be named, each with a key of its own while there are."""
        result = []
        for index, key in zip(range(len(sequence.pages)), keys, strict=False):
            positions = sequence.positions[index * self.page_tokens :][: self.page_tokens]
            first, last = positions[0], positions[-1]
            if first % self.page_tokens == 0 and last - first == len(positions) - 1:
                result.append(Block(key, first, len(positions)))
        return result

    def publish(self, sequence: ModelSequence, blocks: list[Block], pinning: Pinning = AS_IT_IS) -> None:
        used = []
        for block in blocks:
            page = sequence.pages[sequence.positions.index(block.start) // self.page_tokens]
            taken = self.names.get(block.key)
            if taken is None and page.block is None:
                page.block = block
            used.append(taken or page)
        self.pin(used, pinning)
        self.touch(used)

    def pin(self, pages: list[ModelPage], pinning: Pinning) -> None:
        """Pin whole blocks of a context as far as they may be, or end their pins."""
        for page in pages:
            block = page.block
            if block is None or block.num_tokens < self.page_tokens:
                continue
            if block.start + block.num_tokens > pinning.num_tokens:
                continue
            if pinning.retention is Retention.IN_MEMORY and page.is_pinned:
                page.is_pinned = False
                self.touch([page])
            if pinning.retention is Retention.DAY:
                if not page.is_pinned and not self.make_room_for_pin():
                    return
                page.is_pinned = True
                self.touch([page])

    def make_room_for_pin(self) -> bool:
        if len(self.pinned) < self.max_pinned:
            return True
        idle = [page for page, _ in self.idle if page.is_pinned]
        if idle:
            idle[0].is_pinned = False
        return bool(idle)

    def can_share(self, sequence: ModelSequence, blocks: list[Block]) -> bool:
        end, num_tokens = sequence.end, len(sequence.numbers)
        for block in blocks:
            if block.start < end or num_tokens % self.page_tokens:
                return False
            end, num_tokens = block.start + block.num_tokens, num_tokens + block.num_tokens
        return True

    def share(self, sequence: ModelSequence, blocks: list[Block], pinning: Pinning = AS_IT_IS) -> int:
        num_before = len(sequence.pages)
        num_shared = self._share(sequence, blocks)
        self.pin(sequence.pages[num_before:], pinning)
        return num_shared

    def _share(self, sequence: ModelSequence, blocks: list[Block]) -> int:
        for count, block in enumerate(blocks):
            page = self.names.get(block.key)
            if page is None or page.block != block:
                return count
            self.idle = [(idle, used_at) for idle, used_at in self.idle if idle is not page]
            page.num_holders += 1
            sequence.numbers += page.numbers[: block.num_tokens]
            sequence.positions += range(block.start, block.start + block.num_tokens)
            sequence.pages.append(page)
        return len(blocks)

    def touch(self, pages: list[ModelPage]) -> None:
        for page in reversed(pages):
            if page.num_holders == 0:
                self.idle = [(idle, used_at) for idle, used_at in self.idle if idle is not page]
                self.idle.append((page, self.now))

    def expire(self) -> None:
        for page, used_at in self.idle:
            page.is_pinned = page.is_pinned and used_at > self.now - PIN_S
        if self.ttl_s:
            over = self.now - self.ttl_s
            self.idle = [(page, used_at) for page, used_at in self.idle if page.is_pinned or used_at > over]

    def _let_go(self, page: ModelPage) -> None:
        page.num_holders -= 1
        if page.num_holders == 0 and page.block is not None and self.is_cache:
            self.idle.append((page, self.now))

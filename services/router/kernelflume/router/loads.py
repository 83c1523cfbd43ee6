"""How busy weight nodes are: what they report, and what this router has sent them since."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What a weight node has to do."""

    num_requests: int = 0
    num_tokens: int = 0
    """Of the prompts and outputs of these requests."""
    num_pending_tokens: int = 0
    """Of prompts, not computed yet."""


class LoadBook:
    """The load of one weight node. In one event loop; its figures are changed by tickets alone."""

    __slots__ = ("_own_then", "_reported", "num_pending_tokens", "num_requests", "num_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        """This router's requests there, as are the tokens."""
        self.num_tokens = 0
        self.num_pending_tokens = 0
        self._reported = self._own_then = Load()

    @property
    def own(self) -> Load:
        """What this router's requests are to it."""
        return Load(self.num_requests, self.num_tokens, self.num_pending_tokens)

    def report(self, load: Load) -> None:
        """Take note of what the node says."""
        self._reported, self._own_then = load, self.own

    def load(self) -> Load:
        """Return its load now: as reported, with what was sent and has ended since; no less than our own."""
        told, then = self._reported, self._own_then
        # Figure by figure: it is asked for with every request, and of every node.
        return Load(
            self.num_requests + max(0, told.num_requests - then.num_requests),
            self.num_tokens + max(0, told.num_tokens - then.num_tokens),
            self.num_pending_tokens + max(0, told.num_pending_tokens - then.num_pending_tokens),
        )

    def acquire(self, *, num_tokens: int, num_pending_tokens: int) -> LoadTicket:
        """Count a request in, until its ticket is released."""
        return LoadTicket(self, num_tokens=num_tokens, num_pending_tokens=num_pending_tokens)


class LoadTicket:
    """One request's load on one weight node. Whatever is called in whatever order, it counts once."""

    __slots__ = ("_book", "_is_open", "_num_pending_tokens", "_num_tokens")

    def __init__(self, book: LoadBook, *, num_tokens: int, num_pending_tokens: int) -> None:
        self._book = book
        self._is_open = True
        self._num_tokens = num_tokens
        self._num_pending_tokens = num_pending_tokens
        book.num_requests += 1
        book.num_tokens += num_tokens
        book.num_pending_tokens += num_pending_tokens

    def computed(self) -> None:
        """Take note that the prompt is computed."""
        self._book.num_pending_tokens -= self._num_pending_tokens
        self._num_pending_tokens = 0

    def grew(self, num_tokens: int) -> None:
        """Take note of tokens that were generated."""
        if self._is_open:
            self._num_tokens += num_tokens
            self._book.num_tokens += num_tokens

    def release(self) -> None:
        """Count the request out. Harmless when that was done."""
        if self._is_open:
            self._is_open = False
            self.computed()
            self._book.num_requests -= 1
            self._book.num_tokens -= self._num_tokens


class RunLoad:
    """One run's load: on the node that computes its prompt, and then on the one that goes on with it."""

    def __init__(
        self, prefill: LoadBook, decode: LoadBook, *, num_tokens: int, num_pending_tokens: int
    ) -> None:
        """Count a run in.

        Args:
            prefill: of the node that computes the prompt.
            decode: of the node that generates what follows the first token; may be the same.
            num_tokens: of the prompt, with what was generated before.
            num_pending_tokens: of these, those to compute.
        """
        self._tickets = [prefill.acquire(num_tokens=num_tokens, num_pending_tokens=num_pending_tokens)]
        if decode is not prefill:
            # Counted from now on, so that the next decision knows what is coming.
            self._tickets.append(decode.acquire(num_tokens=num_tokens, num_pending_tokens=0))

    def computed(self) -> None:
        """Take note of the first token: what computed the prompt has nothing more to do with it."""
        if len(self._tickets) > 1:
            self._tickets.pop(0).release()
        for ticket in self._tickets:
            ticket.computed()

    def grew(self, num_tokens: int) -> None:
        """Take note of tokens that were generated."""
        self._tickets[-1].grew(num_tokens)

    def release(self) -> None:
        """Count the run out. Harmless when that was done."""
        for ticket in self._tickets:
            ticket.release()

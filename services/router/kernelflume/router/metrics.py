"""What the router counts: vLLM's names where the meaning is the same, `kernelflume_router_*` for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kernelflume.router.latencies import Both
from kernelflume.router.moves import MoveOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.request_class import RequestClass
    from kernelflume.router.latencies import Observer
    from kernelflume.router.moves import EndedMove
    from kernelflume.router.placement.nodes import WeightNodeView
    from kernelflume.router.placer import Decision

_MODEL = ("model_name",)
_BY_NODE = ("weight_node", "request_class")
_FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_BETWEEN_TOKENS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class RouterMetrics:
    """The router's metrics in a registry of their own. A "request" in vLLM's names is one choice here."""

    def __init__(self, model_name: str, views: Callable[[], Sequence[WeightNodeView]]) -> None:
        """Make the metrics.

        Args:
            model_name: label of vLLM's metrics.
            views: returns the weight nodes known, counted when the metrics are shown.
        """
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, _MODEL, registry=self.registry).labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, _MODEL, registry=self.registry).labels(model_name)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(name, text, _MODEL, registry=self.registry, buckets=buckets)
            return family.labels(model_name)

        self.running = gauge("vllm:num_requests_running", "Choices whose first token has come.")
        self.waiting = gauge(
            "vllm:num_requests_waiting", "Choices sent to a weight node without a token yet."
        )
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of requests that were started.")
        self.generation_tokens = counter("vllm:generation_tokens", "Tokens received from weight nodes.")
        self.time_to_first_token: Observer = histogram(
            "vllm:time_to_first_token_seconds",
            "From the request's arrival to a choice's first token.",
            _FIRST_TOKEN_S,
        )
        self.inter_token_latency: Observer = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a choice.", _BETWEEN_TOKENS_S
        )
        self.request_latency = histogram(
            "vllm:e2e_request_latency_seconds", "From the request's arrival to a choice's end.", _WHOLE_S
        )
        self.request_prompt_tokens = histogram(
            "vllm:request_prompt_tokens", "Prompt tokens a choice.", _TOKENS
        )
        self.request_generation_tokens = histogram(
            "vllm:request_generation_tokens", "Generated tokens a choice.", _TOKENS
        )
        self._success = Counter(
            "vllm:request_success",
            "Choices that ended, by reason; abort: cancelled or failed.",
            (*_MODEL, "finished_reason"),
            registry=self.registry,
        )
        self._model_name = model_name
        self.requests_in_progress = Gauge(
            "kernelflume_router_requests_in_progress", "HTTP requests that generate.", registry=self.registry
        )
        self.requests_queued = Gauge(
            "kernelflume_router_requests_queued",
            "HTTP requests that wait for others to end.",
            registry=self.registry,
        )
        self.queue_time = Histogram(
            "kernelflume_router_queue_seconds",
            "Time that requests waited for others to end; those that did not wait are not counted.",
            buckets=_FIRST_TOKEN_S,
            registry=self.registry,
        )
        self.refusals = Counter(
            "kernelflume_router_refusals",
            "Requests refused for limits of their key or for want of room, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.unauthenticated = Counter(
            "kernelflume_router_unauthenticated",
            "Requests refused because they carried no key, or a bad one.",
            ("reason",),
            registry=self.registry,
        )
        self.http_responses = Counter(
            "kernelflume_router_http_responses",
            "HTTP responses, by route and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self.placements = Counter(
            "kernelflume_router_placements",
            "Placement decisions, by reason and by the class that the request was expected to be of.",
            ("reason", "request_class"),
            registry=self.registry,
        )
        self._divided = Counter(
            "kernelflume_router_divided_placements",
            "Decisions that give the prompt to one weight node and the rest to another.",
            ("reason",),
            registry=self.registry,
        )
        self._node_prompt_tokens = Counter(
            "kernelflume_router_node_prompt_tokens",
            "Prompt tokens of choices that were started, by weight node and class (by tokens to compute).",
            _BY_NODE,
            registry=self.registry,
        )
        self._node_cached_tokens = Counter(
            "kernelflume_router_node_cached_tokens",
            "Of these, tokens whose keys and values were found again.",
            _BY_NODE,
            registry=self.registry,
        )
        self._node_expected_tokens = Counter(
            "kernelflume_router_node_expected_cached_tokens",
            "Tokens that this router expected to be found again, when it placed these prompts.",
            _BY_NODE,
            registry=self.registry,
        )
        self.resumptions = Counter(
            "kernelflume_router_resumptions",
            "Choices whose weight node was lost after their first token: resumed on another, or given up.",
            ("outcome",),
            registry=self.registry,
        )
        self._hand_overs = Counter(
            "kernelflume_router_hand_overs",
            "Choices that stood still between two tokens to go on on another weight node: they did (moved), "
            "or went on where they were, as it gave no token in time (gone_on) or none serves (no_target). "
            "By what asked for it.",
            ("outcome", "reason"),
            registry=self.registry,
        )
        self._hand_over_seconds = Histogram(
            "kernelflume_router_hand_over_seconds",
            "Time from a choice's standing still to its next token on another weight node.",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
            registry=self.registry,
        )
        self.failed_attempts = Counter(
            "kernelflume_router_failed_attempts",
            "Attempts to start a choice that a weight node failed or refused before the first token.",
            ("error",),
            registry=self.registry,
        )
        self.disconnects = Counter(
            "kernelflume_router_client_disconnects",
            "Requests whose client went away before their end.",
            registry=self.registry,
        )
        weight_nodes = Gauge(
            "kernelflume_router_weight_nodes",
            "Weight nodes known, by whether they can serve.",
            ("serving",),
            registry=self.registry,
        )
        weight_nodes.labels("true").set_function(lambda: sum(view.serving for view in views()))
        weight_nodes.labels("false").set_function(lambda: sum(not view.serving for view in views()))

    def tell_latencies(self, *, first_token: Observer, between_tokens: Observer) -> None:
        """Tell others of the times to first tokens and between tokens as well, from now on."""
        self.time_to_first_token = Both(self.time_to_first_token, first_token)
        self.inter_token_latency = Both(self.inter_token_latency, between_tokens)

    def count_placement(self, decision: Decision) -> None:
        """Count a decision."""
        placement = decision.placement
        self.placements.labels(placement.reason, decision.request_class).inc()
        if placement.is_divided:
            self._divided.labels(placement.reason).inc()

    def count_move(self, move: EndedMove) -> None:
        """Count a move that is over."""
        self._hand_overs.labels(move.outcome, move.reason).inc()
        if move.outcome is MoveOutcome.MOVED:
            self._hand_over_seconds.observe(move.seconds)

    def count_prompt(
        self,
        *,
        node_id: str,
        request_class: RequestClass,
        num_tokens: int,
        num_cached_tokens: int,
        num_expected_tokens: int,
    ) -> None:
        """Count the prompt of a choice whose first token came.

        Args:
            node_id: of the weight node.
            request_class: by the tokens that were computed.
            num_tokens: of the prompt.
            num_cached_tokens: of these, found again.
            num_expected_tokens: of these, expected to be found again.
        """
        self._node_prompt_tokens.labels(node_id, request_class).inc(num_tokens)
        self._node_cached_tokens.labels(node_id, request_class).inc(num_cached_tokens)
        self._node_expected_tokens.labels(node_id, request_class).inc(num_expected_tokens)

    def received(self, num_tokens: int, seconds: float) -> None:
        """Count the tokens of one event that came ``seconds`` after the choice's event before."""
        if num_tokens:
            self.generation_tokens.inc(num_tokens)
            for _ in range(num_tokens):
                self.inter_token_latency.observe(seconds / num_tokens)

    def ended(self, *, reason: str, num_prompt_tokens: int, num_tokens: int, seconds: float) -> None:
        """Count the end of a choice."""
        self._success.labels(self._model_name, reason).inc()
        self.request_prompt_tokens.observe(num_prompt_tokens)
        self.request_generation_tokens.observe(num_tokens)
        self.request_latency.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

"""A weight node and attention nodes whose every time is known, to choose microbatches against."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kernelflume.wnode.pipeline.choice import LiveMicrobatches
from kernelflume.wnode.pipeline.live_profile import LiveProfile
from kernelflume.wnode.pipeline.load import Load
from kernelflume.wnode.pipeline.remote_times import RemoteTimes
from kernelflume.wnode.pipeline.weight_times import GraphTimes, WeightTimes

US = 1e-6
NUM_LAYERS = 32


@dataclass
class World:
    """By default as measured with Llama-3.1-8B's shape on two H200s: times in microseconds a layer."""

    weight_us: float = 158.0
    """Of one microbatch of any size: the weights are what takes the time."""
    weight_row_us: float = 0.1
    attention_us: float = 13.0
    """The offset of attention and exchange."""
    attention_token_us: float = 0.0009
    exchange_us: float = 10.0
    """What each of several microbatches costs either side."""
    outside_us: float = 300.0
    noise: float = 0.0
    factor: float = 1.0
    """Of steps of two microbatches: what no model knows."""
    random: Random = field(default_factory=lambda: Random(1))  # noqa: S311 - noise

    def weights(self, *, max_rows: int = 128) -> WeightTimes:
        """Return what a start would measure."""
        graphs = {}
        for count in (1, 2):
            rows = 1
            while rows <= max_rows // count:
                layer_s = count * self._weight_us(rows) * US
                outside_s = count * self.outside_us * US
                step_s = outside_s + NUM_LAYERS * layer_s
                graphs[count, rows] = GraphTimes(step_s, outside_s, NUM_LAYERS * layer_s / 4)
                rows *= 2
        return WeightTimes(NUM_LAYERS, graphs)

    def step_s(self, count: int, load: Load) -> float:
        """Return how long a step runs."""
        rows = 1 << (-(-load.num_rows // count) - 1).bit_length()
        weight_us = self._weight_us(rows)
        attention_us = self.attention_us + self.attention_token_us * load.num_tokens / count
        layer_us = weight_us + attention_us
        if count > 1:
            extra = self.exchange_us
            layer_us = max(layer_us, count * (weight_us + extra), count * (attention_us + extra))
            layer_us += min(weight_us, max(0.0, 2 * attention_us - weight_us)) / NUM_LAYERS
        step_us = count * self.outside_us + NUM_LAYERS * layer_us
        jitter = 1 + self.noise * self.random.uniform(-1, 1)
        return step_us * US * jitter * (self.factor if count > 1 else 1.0)

    def _weight_us(self, rows: int) -> float:
        return self.weight_us + self.weight_row_us * rows


class Run:
    """Steps of a world by choice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.profile = LiveProfile(world.weights(), RemoteTimes())
        self.choice = LiveMicrobatches(self.profile)
        self.chosen: list[int] = []
        self.seconds = 0.0

    def step(self, load: Load) -> int:
        """Run one step; return its number of microbatches."""
        count = self.choice.choose(load)
        seconds = self.world.step_s(count, load)
        self.choice.observe(count, load, seconds)
        self.chosen.append(count)
        self.seconds += seconds
        return count

    def late(self, num_steps: int, load: Load) -> list[int]:
        """Run steps each of which is chosen before the one ahead of it is observed."""
        under_way: tuple[int, Load, float] | None = None
        for index in range(num_steps):
            now = grown(load, index)
            count = self.choice.choose(now)
            if under_way is not None:
                self.choice.observe(*under_way)
            under_way = (count, now, self.world.step_s(count, now))
            self.chosen.append(count)
        return self.chosen[-num_steps:]

    def steps(self, num_steps: int, load: Load) -> list[int]:
        """Run steps of which every row adds a token each; return their numbers of microbatches."""
        return [self.step(grown(load, index)) for index in range(num_steps)]

    def still(self, num_steps: int, load: Load) -> list[int]:
        """Run steps of one load, as where requests end while others come."""
        return [self.step(load) for _ in range(num_steps)]


def grown(load: Load, num_steps: int) -> Load:
    """Return what a load becomes after so many steps."""
    return Load(load.num_rows, load.num_tokens + num_steps * load.num_rows)

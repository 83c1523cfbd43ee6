from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.store_contract import entry

from kernelflume.core.errors import EpochConflictError, LifecycleError, NotFoundError
from kernelflume.core.routing import TRANSITIONS, NodeEvent, NodeState, RoutingSnapshot
from kernelflume.store.memory import MemoryServer, MemoryStore

WRITERS = st.integers(min_value=0, max_value=1)
NODE_IDS = st.sampled_from(["a-1", "a-2", "a-3"])


class CompetingWriters(RuleBasedStateMachine):
    """Two writers edit the table from what each of them last read; only a writer that is up to date wins."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        server = MemoryServer()
        self.writers = [MemoryStore(server) for _ in range(2)]
        self.read = [RoutingSnapshot(), RoutingSnapshot()]
        self.published = [RoutingSnapshot()]

    def teardown(self) -> None:
        self.runner.close()

    def publish(self, writer: int, edited: RoutingSnapshot) -> None:
        if self.read[writer].epoch == self.published[-1].epoch:
            self.runner.run(self.writers[writer].publish(edited))
            self.published.append(edited)
            self.read[writer] = edited
        else:
            with pytest.raises(EpochConflictError) as raised:
                self.runner.run(self.writers[writer].publish(edited))
            assert raised.value.actual == self.published[-1].epoch

    @rule(writer=WRITERS)
    def refresh(self, writer: int) -> None:
        self.read[writer] = self.runner.run(self.writers[writer].read())
        assert self.read[writer] == self.published[-1]

    @rule(writer=WRITERS, node_id=NODE_IDS)
    def join(self, writer: int, node_id: str) -> None:
        present = self.read[writer]
        if present.find(node_id) is None:
            self.publish(writer, present.with_node(entry(node_id)))
        else:
            with pytest.raises(LifecycleError):
                present.with_node(entry(node_id))

    @rule(writer=WRITERS, node_id=NODE_IDS, event=st.sampled_from(NodeEvent))
    def happen(self, writer: int, node_id: str, event: NodeEvent) -> None:
        present = self.read[writer]
        node = present.find(node_id)
        if node is None:
            with pytest.raises(NotFoundError):
                present.with_event(event, node_id)
        elif (node.state, event) in TRANSITIONS:
            self.publish(writer, present.with_event(event, node_id))
        else:
            with pytest.raises(LifecycleError):
                present.with_event(event, node_id)

    @rule(writer=WRITERS, node_id=NODE_IDS)
    def leave(self, writer: int, node_id: str) -> None:
        present = self.read[writer]
        if present.find(node_id) is not None:
            self.publish(writer, present.without(node_id))

    @invariant()
    def epochs_grow_by_one_and_never_fork(self) -> None:
        assert [snapshot.epoch for snapshot in self.published] == list(range(len(self.published)))

    @invariant()
    def each_node_moves_only_along_the_table(self) -> None:
        if len(self.published) < 2:
            return
        before, after = self.published[-2:]
        for node in after.nodes:
            earlier = before.find(node.node_id)
            if earlier is None:
                assert node.state is NodeState.PREWARMING
            elif earlier != node:
                assert node.state in {
                    state for (source, _), state in TRANSITIONS.items() if source is earlier.state
                }

    @invariant()
    def ids_are_unique(self) -> None:
        ids = [node.node_id for node in self.published[-1].nodes]
        assert len(set(ids)) == len(ids)


TestCompetingWriters = CompetingWriters.TestCase
TestCompetingWriters.settings = settings(max_examples=40, stateful_step_count=30)

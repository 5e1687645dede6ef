"""A group with much to propose has a part of each pass: others need not wait for the sync of all of it."""

from __future__ import annotations

from typing import Any

from sandq.broker.replication.raft_group import PASS_BYTES
from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from tests.unit.broker.delivery.test_moved_leases import Bed

MESSAGE_BYTES = 700_000
MESSAGES = 12


def test_what_is_left_is_for_the_next_pass() -> None:
    bed = Bed()
    answers: list[Any] = []
    for _ in range(MESSAGES):
        batch = encode({Column.VALUE: [bytes(MESSAGE_BYTES)]})
        bed.host.submit(c.Append(batch), answers.append, size=len(batch), messages=1)
    passes = []
    node_log, group_commit = bed.node_log, bed.node_log.group_commit
    while group_commit.has_work:
        group_commit.begin_tick()
        while group_commit.tick_some():
            pass
        records, ready = node_log.end_tick()
        if records:
            node_log.commit(records)
            passes.append(sum(len(record[-1]) for record in records))
        node_log.applier.run([*ready, *node_log.synced()])
        while bed.published:
            node_log.published(bed.published.popleft())
    assert len(answers) == MESSAGES and len(passes) >= MESSAGES * MESSAGE_BYTES // PASS_BYTES
    assert max(passes) < PASS_BYTES + 2 * MESSAGE_BYTES

"""Name the frames that nodes send each other over a link: `[kind, body]`.

A link carries a PING, kind 0, by itself. JOIN, WELCOME and FOUND are understood between any two nodes of a cluster of
one name; all others only between nodes that have named the same cluster UUID to each other.
"""

from __future__ import annotations

from enum import IntEnum


class PeerFrame(IntEnum):
    """The kind of a frame. What stands in the body follows each."""

    RAFT = 1
    """[message, ...]: of any groups, see `raft.wire`."""
    ROUTES = 2
    """[[group, term, whether the sender leads it and may answer for it], ...]"""
    FOLLOWED = 3
    """An index: what metadata said up to there the sender has done."""
    ASKED = 4
    """A number: how far is metadata? To its leader."""
    TOLD = 5
    """[the number, an index | nil]: the answer; nil from a node that does not lead metadata."""
    JOIN = 6
    """nil: the sender wants to be taken in; the link says who it is."""
    WELCOME = 7
    """[cluster UUID, voters, learners, index]: members of the metadata group, and what it has applied."""
    FOUND = 8
    """Whether the sender may found the cluster: "asks"; the answer is "agrees" | "refuses"."""
    SETTLED = 9
    """[[group, epoch, whole], ...]: see `metadata.commands.Settle`. To metadata's leader."""
    CLOCK_ASKED = 10
    """[a number, the sender's `Standing`]: what is your time?"""
    CLOCK_TOLD = 11
    """[the number, the guarded clock in epoch microseconds, a `Standing`]: the answer."""
    SICK = 12
    """[why the sender is sick, whether it works]: its disk failed or stands still; or it works, and takes nothing new,
    as its disk is nearly full. To all nodes, again and again while it is so."""
    DIGEST = 13
    """[group, number, index, digest | nil]: of what the sender has stored of a group as of the entry at this index,
    which asks for it by this number; nil, it has too much to do. To the group's leader."""
    LIMITS_ASKED = 20
    """[group, [[group of consumers, epoch, version, messages in flight, units, given_us], ...]]: how do you stand, and
    this is what you may have of the limits, if it is newer than what you know. To the leader of a partition's group."""
    LIMITS_TOLD = 21
    """[group, partition, [[group of consumers, epoch, version, leased, messages in flight that it may have,
    returned_us, used, how many messages wait for those in flight, whether some wait for the rate], ...]]: how the
    partition stands. To the leader of the group of partition 0."""
    OUTBOX_BATCH = 30
    """[a number, group, producer id, epoch, batch]: messages that a partition led by the sender sends to this group's
    partition. To the group's leader."""
    OUTBOX_ANSWER = 31
    """[the number, nil | [code, message, whether it is retriable]]: the batch is stored; or why it is not."""
    USAGE = 40
    """[[owner, bytes stored, messages pending], ...]: what the partitions that the sender leads hold of the topics of
    owners whose quota bounds that. To all nodes, once a second."""
    RESTORE_ASKED = 50
    """[a number, restore id, [group, ...]]: which of these partitions has this restore made whole? To the
    nodes that lead them."""
    RESTORE_TOLD = 51
    """[the number, [group, ...]]: these."""
    SHUT = 60
    """[[group, index of the entry that could not be applied | nil, last entry in the rows, whether the sender leads the
    group, step, error], ...]: all shut replicas of the sender (ADR 46). To all nodes, when that changes and when a link
    is made."""
    LOG_PINNED = 52
    """[group, reader, index]: whoever this is reads the log of a partition that the sender leads, and has it up to this
    entry: keep what stands behind it, within bounds. To all members."""

"""Kinds of frames that nodes send each other over a link: `[kind, body]`.

A link sends a PING, kind 0, by itself. JOIN, WELCOME and FOUND are accepted between any two nodes whose clusters have
the same name. All other frames are accepted only between nodes that have sent each other the same cluster UUID.
"""

from __future__ import annotations

from enum import IntEnum


class PeerFrame(IntEnum):
    """The kind of a frame. The docstring of each describes its body."""

    RAFT = 1
    """[message, ...]: messages of any Raft groups, see `raft.wire`."""
    ROUTES = 2
    """[[group, term, whether the sender leads it and may reply for it], ...]"""
    FOLLOWED = 3
    """An index: the sender has carried out the metadata up to this entry."""
    ASKED = 4
    """A number: requests the index of the metadata. To its leader."""
    TOLD = 5
    """[the number, an index | nil]: the reply; nil from a node that does not lead the metadata."""
    JOIN = 6
    """nil: the sender requests to join; the link identifies it."""
    WELCOME = 7
    """[cluster UUID, voters, learners, index]: members of the metadata group, and the index that it has applied."""
    FOUND = 8
    """Whether the sender may found the cluster: "asks"; the reply is "agrees" | "refuses"."""
    SETTLED = 9
    """[[group, epoch, whole], ...]: see `metadata.commands.Settle`. To the metadata's leader."""
    CLOCK_ASKED = 10
    """[a number, the sender's `Standing`]: requests the receiver's time."""
    CLOCK_TOLD = 11
    """[the number, the guarded clock in epoch microseconds, a `Standing`]: the reply."""
    SICK = 12
    """[why the sender is sick, whether it works]: its disk failed or stalls; or it works, but accepts nothing new
    because its disk is nearly full. To all nodes, repeatedly as long as this lasts."""
    DIGEST = 13
    """[group, number, index, digest | nil]: digest of the rows that the sender has stored of a group as of the entry at
    this index. The entry requests the digest by this number. nil: the sender is overloaded. To the group's leader."""
    REMOVED = 14
    """[[node, store UUID], ...]: stores of nodes that were removed from the cluster. To all nodes, when a node
    was removed, and when a link is made."""
    LIMITS_ASKED = 20
    """[group, [[group of consumers, epoch in the settings of the topic, epoch of the limits, version, messages in
    flight, units, given_us, `[max_in_flight, interval_us, burst, unit]` of a named limit | nil, `[version, end in ms,
    by]` of its pause | nil, its name | ""], ...]]: requests the state of a partition, and grants it these parts of the
    limits, if they are newer than those it has. To the leader of a partition's group."""
    LIMITS_TOLD = 21
    """[group, group of the sender's partition, [[group of consumers, name of its named limit | "", epoch in the
    settings of the topic, epoch of the limits (-1: it has left the named limit), version, leased, messages in flight
    that it may have, returned_us, used, how many messages wait for those in flight, units that the next one needs,
    version of the pause of the named limit], ...]]: the state of the partition. To the leader of partition 0, or of the
    partition of `sandq.limits`."""
    OUTBOX_BATCH = 30
    """[a number, group, producer id, epoch, batch]: messages that a partition led by the sender sends to this group's
    partition. To the group's leader."""
    OUTBOX_ANSWER = 31
    """[the number, nil | [code, message, whether it is retriable]]: the batch is stored, or the reason why it is
    not."""
    USAGE = 40
    """[[owner, bytes stored, messages pending], ...]: usage of each owner with a quota for it, in the partitions that
    the sender leads. To all nodes, once a second."""
    PAUSE_ASKED = 41
    """[a number, [group, ...], group of consumers, tenant | nil, end in ms]: pause this group of consumers, or its
    tenant, in these partitions, unless it is paused for longer there. The sender has verified a lease. To the leader of
    the partitions."""
    PAUSE_TOLD = 42
    """[the number, [group, ...], [group, ...], reason]: the partitions in which the pause holds, and those that refuse
    it for this reason. All others have not answered."""
    LIMIT_PAUSE_ASKED = 43
    """[a number, group, named limit, end in ms, by]: pause this limit, unless it is paused for longer. The sender has
    verified a lease. To the leader of the partition of `sandq.limits`, which is this group."""
    LIMIT_PAUSE_TOLD = 44
    """[the number, end in ms, members that apply the pause, all members, error | ""]: the reply."""
    RESTORE_ASKED = 50
    """[a number, restore id, [group, ...]]: which of these partitions has this restore completed? To the nodes that
    lead them."""
    RESTORE_TOLD = 51
    """[the number, [group, ...]]: the completed partitions."""
    SHUT = 60
    """[[group, index of the entry that could not be applied | nil, last entry in the rows, whether the sender leads the
    group, step, error], ...]: all shut replicas of the sender (ADR 46). To all nodes, when that changes and when a link
    is made."""
    LOG_PINNED = 52
    """[group, reader, index]: this reader of the log of a partition that the sender leads has it up to this entry. Keep
    the entries after it, within bounds. To all members."""

"""Let an operator skip a log entry that no replica of a group can apply (ADR 46)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from sandq.broker.catalog import Catalog
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.replication.shut import ApplyFailure, Step, describe
from sandq.metadata import commands as metadata_commands
from sandq.model.errors import Conflict, InvalidRequest, NotLeader, UnknownPartition
from sandq.model.logger import get_logger
from sandq.model.members import node_of
from sandq.partition import commands
from sandq.protocol.requests_admin import EntrySkip
from sandq.raft import Skip
from sandq.raft.skip import SKIP_ID_BYTES
from sandq.raft.wire import REGULAR

log = get_logger("sandq.replication")

SHOWN_COMMANDS: Final = 1000
"""Maximum number of commands that the answer for an entry describes."""


class EntrySkips:
    """Skips entries, or some commands of an entry, in the groups that this node leads with a shut replica."""

    def __init__(
        self,
        *,
        own: str,
        node_log: NodeLog,
        catalog: Catalog,
        shut_replicas: ShutReplicas,
        links: PeerLinks,
    ) -> None:
        """`own`: node id of this node."""
        self._own = own
        self._node_log = node_log
        self._catalog = catalog
        self._shut_replicas = shut_replicas
        self._links = links

    async def skip(self, request: EntrySkip) -> dict[str, Any]:
        """Skip the entry that shut a partition. With `dry_run`, only describe the entry.

        Return when the skip is committed. Then the replicas open again. Raise Conflict if there is nothing to skip, or
        if another replica may have applied the entry. Raise InvalidRequest if the entry or the commands that the
        operator named do not match. Raise NotLeader, UnknownTopic, UnknownPartition or TimedOut."""
        host = self._host(request)
        failure = host.shut
        if failure is None or not host.is_shut_leader:
            raise self._not_here(request, host)
        index = self._index(host, failure, request)
        self._check_others(host, index, force=request.force)
        journal = host.group.journal
        term = journal.term_at(index)
        if term is None:
            raise Conflict(f"entry {index} is no longer in the log; ask again in a moment")
        stored = journal[index - journal.first_index][0]
        if stored[0] != REGULAR:
            raise Conflict(f"entry {index} belongs to Raft itself: it cannot be skipped")
        # If commands of the entry were skipped before, continue with the entry that replaced it.
        command = journal.replacement(index, host.group.commit_index) or stored[1:]
        skip_id = secrets.token_bytes(SKIP_ID_BYTES)
        replacement, described = replacement_of(host.number, skip_id, command, _chosen(request, failure), failure)
        answer = {
            "topic": request.topic,
            "partition": request.partition,
            "node": self._own,
            "index": index,
            "term": term,
            "rows_index": failure.rows_index,
            "error": failure.error,
            "skipped": not request.dry_run,
            "commands": described,
        }
        if not request.dry_run:
            await host.propose_skip(Skip(index, term, skip_id, replacement))
            log.warning(
                "an operator skipped an entry",
                group=host.number,
                topic=request.topic,
                partition=request.partition,
                index=index,
                commands=[row["text"] for row in described if row["skipped"]],
            )
        return answer

    def _host(self, request: EntrySkip) -> RaftGroup:
        """Return the local Raft group that the request names. Raise UnknownTopic, UnknownPartition, NotLeader."""
        if request.topic is None:
            return self._node_log.metadata
        view = self._catalog.view
        topic = view.topics.get(request.topic)
        if topic is None:
            return self._catalog.partition(request.topic, request.partition).raft_group  # raises UnknownTopic or Unsure
        if request.partition >= len(topic.partitions):
            raise UnknownPartition(
                f"topic {request.topic!r} has no partition {request.partition}; it has {len(topic.partitions)}"
            )
        group = topic.partitions[request.partition].group
        found = self._node_log.hosts.get(group)
        if found is None:
            raise self._elsewhere(group, f"{_named(request)} is not on this node")
        return found

    def _not_here(self, request: EntrySkip, host: RaftGroup) -> Conflict | NotLeader:
        """Return the error for a group whose replica here is not shut, or which another node leads."""
        if host.group.is_leader:
            return Conflict(f"{_named(request)} is not shut: there is nothing to skip")
        return self._elsewhere(host.number, f"{_named(request)} is not led by this node", host.group.leader)

    def _elsewhere(self, group: int, text: str, leader: str | None = None) -> NotLeader:
        """Return a NotLeader error that names the leader, if this node knows the leader."""
        shut = self._shut_replicas.nodes_of(group)
        leading = leader or next((node for node, report in shut.items() if report.leads), None)
        return NotLeader(text, group=group, **({"node_id": leading} if leading is not None else {}))

    def _index(self, host: RaftGroup, failure: ApplyFailure, request: EntrySkip) -> int:
        """Return the index of the entry to skip.

        Raise Conflict if no skip can help, if the entry is skipped already, or if it is not known yet which entry is
        at fault. Raise InvalidRequest if the operator named a different entry."""
        if failure.step is Step.SKIPPED:
            raise Conflict(
                f"{_named(request)}: this replica has applied an entry that its group skipped: no skip opens it, a "
                "snapshot of another replica does"
            )
        if failure.index is None:
            raise Conflict(
                f"{_named(request)}: the rows of this replica cannot be read ({failure.error}): no entry is at fault. "
                "Rebuild it from another replica (sandctl cluster rebuild), or restore the topic from a backup"
            )
        if not failure.is_exact:
            raise Conflict(
                f"{_named(request)}: one of several entries up to {failure.index} is at fault; the replica is being "
                "loaded again to learn which; check again in a moment"
            )
        if host.is_skipping(failure.index):
            raise Conflict(f"{_named(request)}: the entry is skipped already; the replica is being opened again")
        if request.entry is not None and request.entry != failure.index:
            raise InvalidRequest(
                f"entry: {_named(request)} is shut at entry {failure.index}, not {request.entry}; check again with "
                "--dry-run"
            )
        return failure.index

    def _check_others(self, host: RaftGroup, index: int, *, force: bool) -> None:
        """Raise Conflict if another voter may have applied the entry. Otherwise acknowledged messages could be lost.

        `force`: ignore voters that cannot be reached."""
        shut, up = self._shut_replicas.nodes_of(host.number), self._links.up
        for voter in host.members.voters:
            node = node_of(voter)
            if voter == host.group.member:
                continue
            report = shut.get(node)
            if report is None and node in up:
                raise Conflict(
                    f"{node} has a replica that is not shut: it may have applied entry {index}, and must lead. It "
                    "will once it has all of the log; check again in a moment"
                )
            if report is not None and report.reached >= index:
                raise Conflict(f"{node} has applied entry {index}: it must lead, and will by itself")
            if report is None and not force:
                raise Conflict(
                    f"{node} cannot be reached: it may have applied entry {index}, and have acknowledged its requests. "
                    "Bring it back, or skip with force if it is lost for good"
                )


def _named(request: EntrySkip) -> str:
    """Return the name of the requested partition for an error message."""
    return "the metadata" if request.topic is None else f"partition {request.partition} of topic {request.topic!r}"


def _chosen(request: EntrySkip, failure: ApplyFailure) -> Sequence[int] | None:
    """Return the positions of the commands to skip: the commands that the operator named, or else the failed command.

    None: skip all commands, because the failed command is not known."""
    if request.commands is not None or failure.command is None:
        return request.commands
    return (failure.command,)


def replacement_of(
    group: int, skip_id: bytes, command: bytes, positions: Sequence[int] | None, failure: ApplyFailure
) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the entry without the commands at these positions, and a description of all its commands.

    `positions`: None means all commands."""
    module: Any = metadata_commands if group == METADATA_GROUP else commands
    try:
        entry = module.Entry.decode(command)
    except Exception as error:
        if positions is not None:
            text = f"commands: the entry cannot be decoded, so it is skipped as a whole: {error}"
            raise InvalidRequest(text) from None
        nothing = module.Entry(0, (module.Skipped(skip_id, b""),)).encode()
        row = {"position": 0, "kind": "?", "text": f"{len(command)} bytes that cannot be decoded: {error}"[:500]}
        return nothing, [{**row, "failed": True, "skipped": True}]
    count = len(entry.commands)
    wrong = [at for at in positions or () if at >= count]
    if wrong:
        raise InvalidRequest(f"commands: the entry has commands 0 to {count - 1}, there is no {wrong[0]}")
    chosen = set(range(count) if positions is None else positions)

    def is_refused(at: int) -> bool:
        """Return whether to refuse a command if it is sent again.

        If only some commands are skipped, refuse these commands. If the whole entry is skipped, refuse only the failed
        command: the others were only merged into the same entry. If the failed command is not known, refuse all
        commands of the entry."""
        return positions is not None or failure.command in (None, at)

    kept = [
        module.Skipped.of(skip_id, one, is_refused=is_refused(at)) if at in chosen else one
        for at, one in enumerate(entry.commands)
    ]
    if not any([isinstance(one, module.Skipped) and one.skip_id == skip_id for one in kept]):
        raise InvalidRequest("commands: all of these are skipped already: name a different one, or none to skip all")
    rows = [
        {
            "position": at,
            "kind": type(one).__name__,
            "text": describe(one),
            "failed": at == failure.command,
            "skipped": at in chosen,
        }
        for at, one in enumerate(entry.commands[:SHOWN_COMMANDS])
    ]
    fields = {"clock_epoch": entry.clock_epoch} if module is commands else {}
    replaced: bytes = module.Entry(entry.now_ms, tuple(kept), **fields).encode()
    return replaced, rows

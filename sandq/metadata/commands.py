"""Commands of the metadata group and the Raft entry that carries them. PERSISTED: type numbers and field orders.

Entry: msgpack `[version=1, now_ms, [command, ...]]`, command `[type, fields...]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, ClassVar, Final

import msgpack

from sandq.model.errors import Corruption, StartupError
from sandq.model.features import FIRST_LEVEL

ENTRY_VERSION = 1
DIGEST_BYTES: Final = 16


class _Command:
    """Properties of every command."""

    __slots__ = ()
    feature_level: ClassVar[int] = FIRST_LEVEL
    """Lowest feature level of the cluster at which this kind of command may be proposed."""
    takes_space: ClassVar[bool] = False
    """True if commands of this kind add data."""

    @property
    def needs_space(self) -> bool:
        """True if the command is rejected while the disk is nearly full."""
        return self.takes_space

    @property
    def needed_level(self) -> int:
        """Lowest feature level of the cluster at which this particular command may be proposed."""
        return self.feature_level

    def digest(self) -> bytes:
        """Return a hash of the command's type and fields: equal if an equal command is proposed again."""
        command: Any = self
        return sha256(msgpack.packb((command.type, *_fields(command)))).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class RegisterNode(_Command):
    """Register a node that is a member of the metadata group, or update its record.

    `addresses`: the addresses that it serves, as `{"client": "host:port", ...}`. `lowest_level`, `highest_level`: the
    feature levels that its version supports."""

    type: ClassVar[int] = 1
    node_id: str
    store_uuid: str
    addresses: dict[str, str]
    zone: str
    weight: int
    incarnation: int
    lowest_level: int
    highest_level: int


@dataclass(frozen=True, slots=True)
class CreateTopic(_Command):
    """Create a topic.

    `placement`: for each partition the ids of the nodes that hold it. `settings`: a settings record. `owner`: the
    principal whose quota the topic counts towards. Rejected if the quota would be exceeded."""

    type: ClassVar[int] = 2
    name: str
    kind: str
    replicas: int
    placement: Sequence[Sequence[str]]
    settings: dict[str, Any]
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopic(_Command):
    """Delete a topic with its partitions and pushes."""

    type: ClassVar[int] = 3
    name: str


@dataclass(frozen=True, slots=True)
class UpdateTopic(_Command):
    """Change a topic's settings and number of replicas, and add partitions.

    `settings`: the whole settings record. `added`: for each new partition the ids of its nodes. `partitions`: number of
    the first new partition; rejected if the topic has a different number of partitions by then."""

    type: ClassVar[int] = 4
    name: str
    settings: dict[str, Any]
    replicas: int
    partitions: int
    added: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class FormCluster(_Command):
    """Give the cluster its UUID. If the cluster already has a UUID, keep it."""

    type: ClassVar[int] = 5
    cluster_uuid: str


@dataclass(frozen=True, slots=True)
class MarkNode(_Command):
    """Mark a node as failed or as back.

    `failed_since_ms`: time in ms at which it became unavailable; None if it is back."""

    type: ClassVar[int] = 6
    node_id: str
    failed_since_ms: int | None


@dataclass(frozen=True, slots=True)
class ChangeStanding(_Command):
    """Change a node's standing: whether it may hold partitions (IN, DRAINING, REMOVING in `records`)."""

    type: ClassVar[int] = 7
    node_id: str
    standing: str


@dataclass(frozen=True, slots=True)
class RemoveNode(_Command):
    """Delete a node whose standing is REMOVING, that holds no partitions, and that left the metadata group."""

    type: ClassVar[int] = 8
    node_id: str
    store_uuid: str


@dataclass(frozen=True, slots=True)
class Assign(_Command):
    """Assign the partition of a group to these nodes. The first node should lead it.

    `epoch`: number of the assignment that the command replaces. Rejected if another assignment is current."""

    type: ClassVar[int] = 9
    group: int
    epoch: int
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Settle(_Command):
    """Report that the committed configuration of a group has only members of the assignment with this `epoch`.

    `whole`: the configuration has every assigned member as a voter."""

    type: ClassVar[int] = 10
    group: int
    epoch: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Balance(_Command):
    """Record the nodes over which all partitions are spread evenly."""

    type: ClassVar[int] = 11
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class RaiseFeatureLevel(_Command):
    """Raise the cluster's feature level; rejected while a registered node does not support it."""

    type: ClassVar[int] = 12
    level: int


@dataclass(frozen=True, slots=True)
class SetPush(_Command):
    """Push the messages of a group to a URL. `push`: see `model.push`; None stops the push."""

    type: ClassVar[int] = 13
    topic: str
    group: str
    push: dict[str, Any] | None = field(repr=False)  # contains secrets


@dataclass(frozen=True, slots=True)
class PutIdentity(_Command):
    """Create or replace an identity; for its fields see `records.IdentityRecord`.

    `is_new`: create the identity; rejected if it exists. Otherwise replace it; rejected if it does not exist."""

    type: ClassVar[int] = 14
    principal: str
    is_new: bool
    grants: Sequence[str]
    secret_hash: bytes | None = field(repr=False)
    expires_ms: int | None
    quota: dict[str, int]
    note: str


@dataclass(frozen=True, slots=True)
class DeleteIdentity(_Command):
    """Delete the identity of a principal."""

    type: ClassVar[int] = 15
    principal: str


@dataclass(frozen=True, slots=True)
class PutRole(_Command):
    """Create a role, or replace the role of this name."""

    type: ClassVar[int] = 16
    name: str
    grants: Sequence[str]


@dataclass(frozen=True, slots=True)
class DeleteRole(_Command):
    """Delete a role; rejected while identities have it."""

    type: ClassVar[int] = 17
    name: str


@dataclass(frozen=True, slots=True)
class Skipped(_Command):
    """Replaces a command that could not be applied and that an operator skipped (ADR 46)."""

    type: ClassVar[int] = 18
    skip_id: bytes
    """Id of the operator's decision, 16 bytes."""
    command_digest: bytes
    """`digest()` of the skipped command, which is rejected if it is sent again. Empty if it may be sent again."""

    @classmethod
    def of(cls, skip_id: bytes, command: Command, *, is_refused: bool = True) -> Skipped:
        """Return the replacement of a command.

        `is_refused`: reject the command if it is sent again, unless nodes propose it by themselves."""
        if isinstance(command, Skipped):
            return command
        return cls(skip_id, command.digest() if is_refused and not isinstance(command, OWN_COMMANDS) else b"")


OWN_COMMANDS: Final = (RegisterNode, FormCluster, MarkNode, Assign, Settle, Balance, RaiseFeatureLevel)
"""Commands that nodes propose by themselves, repeatedly. Rejecting them could, for example, prevent a registration."""

Command = (
    RegisterNode
    | CreateTopic
    | DeleteTopic
    | UpdateTopic
    | FormCluster
    | MarkNode
    | ChangeStanding
    | RemoveNode
    | Assign
    | Settle
    | Balance
    | RaiseFeatureLevel
    | SetPush
    | PutIdentity
    | DeleteIdentity
    | PutRole
    | DeleteRole
    | Skipped
)
_CLASSES: dict[int, type[Any]] = {c.type: c for c in Command.__args__}


def _fields(command: Command) -> list[Any]:
    """Return the fields of a command that are written to the log."""
    return [getattr(command, each.name) for each in fields(command)]


@dataclass(frozen=True, slots=True)
class Entry:
    """A Raft entry of the metadata group. `now_ms`: the clock of the node that proposed it, in ms since 1970."""

    now_ms: int
    commands: Sequence[Command]

    def encode(self) -> bytes:
        commands = [(c.type, *_fields(c)) for c in self.commands]
        body: bytes = msgpack.packb((ENTRY_VERSION, self.now_ms, commands))
        return body

    @property
    def raised_to(self) -> int:
        """The highest feature level that the entry raises the cluster to; 0 if it raises none."""
        return max([command.level for command in self.commands if isinstance(command, RaiseFeatureLevel)], default=0)

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Decode an entry. Raise Corruption if it is damaged, StartupError if a newer version wrote it."""
        try:
            version, now_ms, commands = msgpack.unpackb(data, raw=False)
            if version != ENTRY_VERSION:
                raise Corruption(f"a metadata entry has version {version}, this program knows {ENTRY_VERSION}")
            unknown = {command[0] for command in commands} - _CLASSES.keys()
            if unknown:
                raise StartupError(
                    f"a metadata entry has commands of types {sorted(unknown)}, which this program does not know: "
                    "a newer version has written them"
                )
            return cls(now_ms, [_CLASSES[c[0]](*c[1:]) for c in commands])
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise Corruption(
                f"a metadata entry cannot be read, it is damaged or a newer version has written it: {error!r}"
            ) from error

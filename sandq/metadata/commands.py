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
    """What every command has."""

    __slots__ = ()
    feature_level: ClassVar[int] = FIRST_LEVEL
    """The cluster's level from which on it may be proposed."""
    takes_space: ClassVar[bool] = False

    @property
    def needs_space(self) -> bool:
        """Whether it is refused while the disk is nearly full."""
        return self.takes_space

    @property
    def needed_level(self) -> int:
        """The same, of this very command."""
        return self.feature_level

    def digest(self) -> bytes:
        """Return a hash that is the same whenever the same command is proposed again."""
        command: Any = self
        return sha256(msgpack.packb((command.type, *_fields(command)))).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class RegisterNode(_Command):
    """A node that is a member of the metadata group, with its store UUID, the addresses it serves
    (`{"client": "host:port", ...}`), and the feature levels that its version knows."""

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
    """`placement`: for each partition the ids of the nodes that hold it. `settings`: a settings record. `owner`: the
    principal whose quota it counts for; refused when that has no room for it."""

    type: ClassVar[int] = 2
    name: str
    kind: str
    replicas: int
    placement: Sequence[Sequence[str]]
    settings: dict[str, Any]
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopic(_Command):
    type: ClassVar[int] = 3
    name: str


@dataclass(frozen=True, slots=True)
class UpdateTopic(_Command):
    """`settings`: the whole settings record. `added`: where further partitions are placed, the first of them being
    number `partitions`: refused when there are more or fewer by then."""

    type: ClassVar[int] = 4
    name: str
    settings: dict[str, Any]
    replicas: int
    partitions: int
    added: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class FormCluster(_Command):
    """Give the cluster its UUID; the first one stays."""

    type: ClassVar[int] = 5
    cluster_uuid: str


@dataclass(frozen=True, slots=True)
class MarkNode(_Command):
    """Since when a node is neither heard of nor linked; None: it is back."""

    type: ClassVar[int] = 6
    node_id: str
    failed_since_ms: int | None


@dataclass(frozen=True, slots=True)
class ChangeStanding(_Command):
    """Whether a node is to hold anything: see `records`."""

    type: ClassVar[int] = 7
    node_id: str
    standing: str


@dataclass(frozen=True, slots=True)
class RemoveNode(_Command):
    """Forget a node that is removing and holds nothing any more, of which the metadata group has no member either."""

    type: ClassVar[int] = 8
    node_id: str
    store_uuid: str


@dataclass(frozen=True, slots=True)
class Assign(_Command):
    """These nodes are to hold the partition of a group, the first is to lead it. `epoch`: the assignment that this one
    follows; after another one it is refused."""

    type: ClassVar[int] = 9
    group: int
    epoch: int
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Settle(_Command):
    """The committed configuration of a group has nobody whom the assignment of this epoch does not want; `whole`: and
    all whom it wants, as voters."""

    type: ClassVar[int] = 10
    group: int
    epoch: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Balance(_Command):
    """All partitions are spread evenly over these nodes."""

    type: ClassVar[int] = 11
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class RaiseFeatureLevel(_Command):
    """Let the cluster come to a feature level; refused while a registered node does not know it."""

    type: ClassVar[int] = 12
    level: int


@dataclass(frozen=True, slots=True)
class SetPush(_Command):
    """Have the messages of a group pushed to a URL: `push` as `model.push` has it; None: not any more."""

    type: ClassVar[int] = 13
    topic: str
    group: str
    push: dict[str, Any] | None = field(repr=False)  # it has secrets


@dataclass(frozen=True, slots=True)
class PutIdentity(_Command):
    """Keep an identity, as `records.IdentityRecord` has it. `is_new`: refused when there is one of this principal;
    otherwise refused when there is none."""

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
    type: ClassVar[int] = 15
    principal: str


@dataclass(frozen=True, slots=True)
class PutRole(_Command):
    """Keep a role, instead of one of this name."""

    type: ClassVar[int] = 16
    name: str
    grants: Sequence[str]


@dataclass(frozen=True, slots=True)
class DeleteRole(_Command):
    """Forget a role; refused while identities have it."""

    type: ClassVar[int] = 17
    name: str


@dataclass(frozen=True, slots=True)
class Skipped(_Command):
    """Stand where a command stood that could not be applied and that an operator skipped (ADR 46)."""

    type: ClassVar[int] = 18
    skip_id: bytes
    """Names the operator's decision, 16 bytes."""
    command_digest: bytes
    """`digest()` of the skipped command: it is refused when it is sent again. Empty if it may come again."""

    @classmethod
    def of(cls, skip_id: bytes, command: Command, *, is_refused: bool = True) -> Skipped:
        """Make what takes the place of a command. `is_refused`: it is refused when it is sent again, unless nodes
        propose it by themselves."""
        if isinstance(command, Skipped):
            return command
        return cls(skip_id, command.digest() if is_refused and not isinstance(command, OWN_COMMANDS) else b"")


OWN_COMMANDS: Final = (RegisterNode, FormCluster, MarkNode, Assign, Settle, Balance, RaiseFeatureLevel)
"""Commands that nodes propose by themselves, the same ones again: a node could not register if a skip refused it."""

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
    """What is written of a command."""
    return [getattr(command, each.name) for each in fields(command)]


@dataclass(frozen=True, slots=True)
class Entry:
    now_ms: int
    commands: Sequence[Command]

    def encode(self) -> bytes:
        commands = [(c.type, *_fields(c)) for c in self.commands]
        body: bytes = msgpack.packb((ENTRY_VERSION, self.now_ms, commands))
        return body

    @property
    def raised_to(self) -> int:
        """The highest feature level that it lets the cluster come to; 0: none."""
        return max([command.level for command in self.commands if isinstance(command, RaiseFeatureLevel)], default=0)

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Raises Corruption; StartupError when a newer version has written it."""
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

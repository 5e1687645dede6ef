"""Declare requests. Each request is a class, and its annotations are its fields on the wire.

    class Fetch(Request, type=Type.FETCH):
        topic: str
        partition: Partition                            an alias: Annotated[int, Bounds(0, PARTITION_MAX)]
        end: Offset | None                              nil is allowed
        state: Annotated[str, choice("on", "off")]      a check beyond the type
        pending: bool = False                           may be left out at the end of a frame

A frame may omit trailing fields that have a default, and a client omits trailing fields that equal their default. So a
client can send a request to an older version if the request uses no newer field. Each field that is added later needs a
default.

The shape against which frames are checked is derived from the annotations once, when the module is imported. `REQUESTS`
maps a frame type to its class. A class that checks several fields together overrides `parse`. A request is a tuple of
its fields: immutable, and cheap to create, which matters for frames of one message. This module does not check single
messages.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Protocol,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from sandq.model.errors import SandqError
from sandq.protocol.fields import (
    OFFSET_BYTES,
    PARTITION_MAX,
    U32_MAX,
    U48_MAX,
    U64_MAX,
    Check,
    Field,
    Shape,
    one_of,
)
from sandq.protocol.frames import Frame, Type, encode_frame

REQUESTS: dict[int, type[Request]] = {}
"""All requests, by frame type."""
HEAD_ITEMS: Final = 2
"""Items of a frame before its fields: its type and the request's id."""


class Bounds(NamedTuple):
    """The least and the greatest value of an int. Default: 0 and the greatest u64."""

    minimum: int = 0
    maximum: int = U64_MAX


def length(size: int) -> Check:
    """Return a check of bytes with this length."""
    return lambda value: None if len(value) == size else f"expected {size} bytes, got {len(value)}"


def choice(*words: str) -> Check:
    """Return a check that accepts only these words."""
    return lambda value: None if value in words else f"expected {one_of(words)}, got {value[:40]!r}"


def characters(minimum: int, maximum: int) -> Check:
    """Return a check of the number of characters in a text."""
    allowed = f"{minimum}..{maximum} are allowed" if minimum else f"{maximum} is the limit"
    return lambda value: None if minimum <= len(value) <= maximum else f"{len(value)} characters; {allowed}"


def row_of(words: str, *kinds: type) -> Check:
    """Return a check of an array of values of these types, without negative ints. `words`: description of the array."""
    expected = [*kinds]

    def check(value: Any) -> str | None:
        if type(value) is not list or [*map(type, value)] != expected:
            return f"expected {words}"
        return next((f"{cell} is negative" for cell in value if type(cell) is int and cell < 0), None)

    return check


def each(check: Check, most: int | None = None) -> Check:
    """Return a check of an array whose items all pass `check`. `most`: the array must have 1 to `most` items."""

    def check_all(values: Sequence[Any]) -> str | None:
        if most is not None and not 1 <= len(values) <= most:
            return f"1..{most} items are allowed, not {len(values)}"
        for number, value in enumerate(values, 1):
            problem = check(value)
            if problem is not None:
                return f"item {number}: {problem}"
        return None

    return check_all


U32 = Annotated[int, Bounds(0, U32_MAX)]
U48 = Annotated[int, Bounds(0, U48_MAX)]
Partition = Annotated[int, Bounds(0, PARTITION_MAX)]
Offset = Annotated[bytes, length(OFFSET_BYTES)]


@dataclass_transform(frozen_default=True)
class _RequestMeta(type):
    """Makes a named tuple of each class that names its frame type."""

    def __new__(meta, name: str, bases: tuple[type, ...], body: dict[str, Any], *, type: Type | None = None) -> Any:
        if type is None:
            return super().__new__(meta, name, bases, body)
        names = [*body.get("__annotations__", {})]
        defaults = [body.pop(field) for field in names if field in body]
        # The first base of the class is a named tuple, so that an instance is a plain tuple that is cheap to create.
        plain = namedtuple(name, names, defaults=defaults)  # type: ignore[misc]
        made: Any = super().__new__(meta, name, (plain, *bases), {**body, "__slots__": (), "type": type})
        hints = get_type_hints(made, include_extras=True)
        made.shape = Shape(type.name, *(_field(field, hints[field]) for field in names))
        made.defaults = tuple(defaults)
        assert type not in REQUESTS, f"two requests of type {type.name}"
        REQUESTS[type] = made
        return made


def unknown_request(kind: int) -> str:
    """Return the error message for a request of a type that this version does not have. Older versions use the same
    text."""
    return f"there are no requests of type {int(kind)}"


class Request(tuple[Any, ...], metaclass=_RequestMeta):
    """A request of a client; see the module's docstring."""

    __slots__ = ()
    type: ClassVar[Type]
    shape: ClassVar[Shape]
    defaults: ClassVar[tuple[Any, ...]]
    """Defaults of the last fields."""

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse a decoded frame of this type. Raise InvalidRequest, which names the wrong field, if the frame is
        invalid."""
        # Older clients do not send fields that were added later: fill in the defaults.
        missing = HEAD_ITEMS + len(cls.shape.fields) - len(frame)
        if 0 < missing <= len(cls.defaults):
            frame = [*frame, *cls.defaults[-missing:]]
        cls.shape.check(frame)
        return tuple.__new__(cls, frame[HEAD_ITEMS:])

    checked = parse
    """The original `parse`, for a class that overrides `parse` to check more than the annotations say."""

    def frame(self, request_id: int) -> bytes:
        """Encode the request without trailing fields that have their defaults."""
        sent = len(self)
        for default in reversed(self.defaults):
            if self[sent - 1] != default:
                break
            sent -= 1
        return encode_frame(self.type, request_id, *self[:sent])

    @classmethod
    def wrong(cls, field: str, problem: str) -> SandqError:
        """Return the error about one of its fields."""
        names = [known.name for known in cls.shape.fields]
        return cls.shape.wrong(names.index(field) + 1, problem)

    if TYPE_CHECKING:  # a named tuple has them

        @classmethod
        def _make(cls, fields: Iterable[Any]) -> Self: ...

        def _replace(self, **fields: Any) -> Self: ...


class TopicRequest(Protocol):
    """A request about a topic."""

    @property
    def topic(self) -> str: ...

    def frame(self, request_id: int) -> bytes: ...


class PartitionRequest(TopicRequest, Protocol):
    """A request about one partition of a topic."""

    @property
    def partition(self) -> int: ...


_KINDS: Mapping[Any, type] = {
    **{kind: kind for kind in (int, str, bytes, bool, list, dict)},
    **{Sequence: list, Mapping: dict},
}


def _field(name: str, hint: Any) -> Field:
    """Return the field that an annotation describes."""
    kinds: list[type] = []
    checks: list[tuple[type, Callable[[Any], str | None]]] = []
    bounds = Bounds()
    arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for arm in arms:
        plain, *extras = get_args(arm) if get_origin(arm) is Annotated else (arm,)
        if plain is NoneType:
            continue
        kinds.append(kind := _KINDS[get_origin(plain) or plain])
        for extra in extras:
            if isinstance(extra, Bounds):
                bounds = extra
            else:
                checks.append((kind, extra))
    kind_or_kinds = kinds[0] if len(kinds) == 1 else tuple(kinds)
    return Field(name, kind_or_kinds, NoneType in arms, bounds.maximum, bounds.minimum, tuple(checks))

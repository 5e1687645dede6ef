"""Declare requests: a class for each, whose annotations are its fields on the wire.

    class Fetch(Request, type=Type.FETCH):
        topic: str
        partition: Partition                            an alias: Annotated[int, Bounds(0, PARTITION_MAX)]
        end: Offset | None                              nil may stand there
        state: Annotated[str, choice("on", "off")]      a check beyond the type
        pending: bool = False                           may be left out at the end of a frame

A frame may lack fields at its end that have a default, and a client leaves out those that are equal to it: so a client
asks an older version for what that version knows, and a field that is added later gets a default.

That is all there is to say: the shape that frames are checked against is derived once, when the module is imported, and
the class is found by its frame type. What concerns several fields a class checks in its own `parse`. A request is a
tuple of its fields: frozen, and made at the price of one, which counts in frames of one message. Nothing looks at
single messages here.
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
"""All requests there are, by frame type."""
HEAD_ITEMS: Final = 2
"""Items of a frame before its fields: its type and the request's id."""


class Bounds(NamedTuple):
    """The least and the greatest value of an int; 0 and the greatest u64 where nothing is said."""

    minimum: int = 0
    maximum: int = U64_MAX


def length(size: int) -> Check:
    """Bytes of this length."""
    return lambda value: None if len(value) == size else f"expected {size} bytes, got {len(value)}"


def choice(*words: str) -> Check:
    """One of these words."""
    return lambda value: None if value in words else f"expected {one_of(words)}, got {value[:40]!r}"


def characters(minimum: int, maximum: int) -> Check:
    """Text of so many characters."""
    allowed = f"{minimum}..{maximum} are allowed" if minimum else f"{maximum} is the limit"
    return lambda value: None if minimum <= len(value) <= maximum else f"{len(value)} characters; {allowed}"


def row_of(words: str, *kinds: type) -> Check:
    """An array of values of these types, no int negative; `words` say what it is."""
    expected = [*kinds]

    def check(value: Any) -> str | None:
        if type(value) is not list or [*map(type, value)] != expected:
            return f"expected {words}"
        return next((f"{cell} is negative" for cell in value if type(cell) is int and cell < 0), None)

    return check


def each(check: Check, most: int | None = None) -> Check:
    """An array all of whose items pass a check; with `most`, of 1 to so many."""

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
        plain = namedtuple(name, names, defaults=defaults)  # type: ignore[misc]
        made: Any = super().__new__(meta, name, (plain, *bases), {**body, "__slots__": (), "type": type})
        hints = get_type_hints(made, include_extras=True)
        made.shape = Shape(type.name, *(_field(field, hints[field]) for field in names))
        made.defaults = tuple(defaults)
        assert type not in REQUESTS, f"two requests of type {type.name}"
        REQUESTS[type] = made
        return made


def unknown_request(kind: int) -> str:
    """What a node says to a request of a type that its version does not have. Older versions say it so, too."""
    return f"there are no requests of type {int(kind)}"


class Request(tuple[Any, ...], metaclass=_RequestMeta):
    """What a client asks for; see the module's docstring."""

    __slots__ = ()
    type: ClassVar[Type]
    shape: ClassVar[Shape]
    defaults: ClassVar[tuple[Any, ...]]
    """Defaults of the last fields."""

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Read the request in a decoded frame of its type. InvalidRequest says which field is wrong."""
        missing = HEAD_ITEMS + len(cls.shape.fields) - len(frame)
        if 0 < missing <= len(cls.defaults):
            frame = [*frame, *cls.defaults[-missing:]]
        cls.shape.check(frame)
        return tuple.__new__(cls, frame[HEAD_ITEMS:])

    checked = parse
    """The same, for a class that checks more than the annotations say, in a `parse` of its own."""

    def frame(self, request_id: int) -> bytes:
        """Encode the request without the fields at its end that have their defaults."""
        sent = len(self)
        for default in reversed(self.defaults):
            if self[sent - 1] != default:
                break
            sent -= 1
        return encode_frame(self.type, request_id, *self[:sent])

    @classmethod
    def wrong(cls, field: str, problem: str) -> SandqError:
        """The error about one of its fields."""
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
    """A field as its annotation describes it."""
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

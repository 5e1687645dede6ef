"""Field types and error messages that settings and the configuration share.

Every model forbids unknown keys. A mistake has a path of keys (`where`) and a text (`what`). All mistakes are found in
one pass, so that users can correct them together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sandq.model.errors import InvalidName, InvalidTime
from sandq.model.names import check_name
from sandq.model.times import duration_ms, format_duration

_DIGITS = re.compile(r"-?[0-9]{1,20}")
_SIZE = re.compile(r"([0-9]{1,18}) ?(B|KiB|MiB|GiB)?")
_SIZE_UNITS = {None: 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SHOWN_CHARS = 60
_LISTED_KEYS = 24


class Section(BaseModel):
    """A mapping whose keys are all known. Frozen."""

    removed: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions had, each with an instruction for the user."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_alias=True, loc_by_alias=True)


class Mistake(NamedTuple):
    """One mistake: the path of keys to it, what is wrong, and whether the key itself is wrong."""

    where: tuple[str | int, ...]
    what: str
    key_is_wrong: bool = False

    @property
    def path(self) -> str:
        """The keys joined by dots."""
        return ".".join(str(key) for key in self.where)

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.where else self.what


def mistake(what: str) -> PydanticCustomError:
    """Return the error that a validator raises. `what` is shown to users unchanged."""
    return PydanticCustomError("sandq", "{what}", {"what": what})


def no_bool(value: object) -> object:
    """Refuse true and false where a number is expected: Python treats them as 1 and 0."""
    if isinstance(value, bool):
        raise mistake("a number is expected, not true or false")
    return value


def whole(value: object, least: int, greatest: int) -> int:
    """Return a whole number, given as an int or as digits, if it is in its range. Raise a mistake otherwise, also for a
    bool or a float."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise mistake(f"{_shown(value)} is not a whole number")
    if not least <= value <= greatest:
        raise mistake(f"{value} is not within {least} to {greatest}")
    return value


def duration(least_ms: int, greatest_ms: int) -> BeforeValidator:
    """Return a validator of durations in the grammar of `times`, which converts them to ms. Use: `Annotated[int,
    duration(0, 1000)]`."""

    def check(value: Any) -> int:
        """Return the duration in ms, checked."""
        try:
            ms = duration_ms(value)
        except InvalidTime as error:
            raise mistake(error.message) from None
        if not least_ms <= ms <= greatest_ms:
            low, high = format_duration(least_ms), format_duration(greatest_ms)
            raise mistake(f"{format_duration(ms)} is not within {low} to {high}")
        return ms

    return BeforeValidator(check)


def integer(least: int, greatest: int) -> BeforeValidator:
    """Return a validator of `whole` numbers."""

    return BeforeValidator(lambda value: whole(value, least, greatest))


def size(least_bytes: int, greatest_bytes: int) -> BeforeValidator:
    """Return a validator of sizes: bytes, or text like "64MiB"."""

    def check(value: object) -> int:
        """Return the size in bytes, checked."""
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is not None:
            value = int(match[1]) * _SIZE_UNITS[match[2]]
        elif isinstance(value, str):
            raise mistake(f'{_shown(value)} is not a size: bytes, or text like "64MiB" is expected')
        return whole(value, least_bytes, greatest_bytes)

    return BeforeValidator(check)


def name(what: str) -> BeforeValidator:
    """Return a validator of names that follow the rule of `names`."""

    def check(value: object) -> str:
        """Return the name, checked."""
        try:
            return check_name(what, value)
        except InvalidName as error:
            raise mistake(error.message) from None

    return BeforeValidator(check)


def mistakes_of(error: ValidationError, model: type[BaseModel]) -> Iterator[Mistake]:
    """Yield every mistake of a failed validation of `model`."""
    for found in error.errors(include_url=False, include_context=True):
        where = tuple(found["loc"])
        kind, given = found["type"], found["input"]
        if kind == "extra_forbidden":
            what = _removal_note(model, where) or "unknown key" + _did_you_mean(model, where)
            yield Mistake(where, what, key_is_wrong=True)
        elif kind == "missing":
            yield Mistake(where, "is required")
        elif kind in ("model_type", "model_attributes_type", "dict_type"):
            yield Mistake(where, f"a mapping of keys is expected, not {_shown(given)}")
        elif kind == "sandq":
            yield Mistake(where, found["msg"])
        else:
            said = found["msg"].removeprefix("Input ")
            yield Mistake(where, f"{_shown(given)} {said}" if said != found["msg"] else f"{said} (given {given!r})")


def _removal_note(model: type[BaseModel], where: tuple[str | int, ...]) -> str | None:
    """Return the text about a key that an earlier version had (`Section.removed`). None for other keys."""
    section = model_at(model, where[:-1])
    return section.removed.get(str(where[-1])) if section is not None and issubclass(section, Section) else None


def _shown(value: object) -> str:
    """Return a value for a mistake, cut to `_SHOWN_CHARS`."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "..."


@dataclass(frozen=True)
class AsSection:
    """An annotation: the value is checked as the section `model` and converted by `build`."""

    model: type[Section]
    build: Callable[..., object]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Build the schema; called by Pydantic."""
        return core_schema.no_info_after_validator_function(
            lambda section: self.build(**section.model_dump()), handler.generate_schema(self.model)
        )


def keys_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a model as users write them, and their types."""
    keys: dict[str, Any] = {}
    for attribute, field in model.model_fields.items():
        section = next((mark.model for mark in field.metadata if isinstance(mark, AsSection)), None)
        keys[field.alias or attribute] = section or field.annotation
    return keys


def model_at(model: type[BaseModel], where: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model of the mapping at this path below `model`; None if there is none."""
    found: type[BaseModel] | None = model
    for key in where:
        if isinstance(key, int):  # an item of the list whose item model was found already
            continue
        found = None if found is None else _model_in(keys_of(found).get(key))
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in a type annotation; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _did_you_mean(model: type[BaseModel], where: tuple[str | int, ...]) -> str:
    """Return the end of the mistake for an unknown key: a similar key, or all keys if there are few."""
    section = model_at(model, where[:-1])
    if section is None or not where:
        return ""
    keys = list(keys_of(section))
    close = difflib.get_close_matches(str(where[-1]), keys, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(sorted(keys))}" if len(keys) <= _LISTED_KEYS else ""

"""Makes headers from one column with all headers or from one column per header, and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add, and_, or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from sandq.model.errors import InvalidSetting
from sandq.spark.jobs.origins import Field

OVERHEAD: Final = 10
"""Maximum bytes that encoding adds to a header's name and value, and once more to all headers together."""
_TEXT: Final = ("string", "varchar(", "char(")
_PAIRS: Final = "array<struct<key:"
_KINDS: Final = (
    "map<string,string>",
    "map<string,binary>",
    f"{_PAIRS}string,value:string>>",
    f"{_PAIRS}string,value:binary>>",
)


def all_headers(field: Field) -> Column:
    """Return a column with all headers. Raises InvalidSetting if its type cannot be headers."""
    if field.kind not in _KINDS:
        raise InvalidSetting(f"headers: a column of type {' or '.join(_KINDS)} is expected, not {field.kind}")
    return field.value


def named_headers(fields: Mapping[str, Field]) -> Column | None:
    """Return a map of the headers that are not null; null if all are.

    Its values are bytes if one of the columns has bytes, otherwise text. Returns None if no header is mapped.
    """
    if not fields:
        return None
    values = _values(fields)
    whole = F.create_map(*(part for name, value in values.items() for part in (F.lit(name), value)))
    present = [value.isNotNull() for value in values.values()]
    # Spark does not compile `map_filter`, so use it only for rows with some nulls.
    some = F.map_filter(whole, lambda _, value: value.isNotNull())
    return F.when(reduce(and_, present), whole).when(reduce(or_, present), some)


def _values(fields: Mapping[str, Field]) -> dict[str, Column]:
    kind = "binary" if any(field.kind == "binary" for field in fields.values()) else "string"
    return {name: field.value if field.kind == "binary" else _text(field).cast(kind) for name, field in fields.items()}


def _text(field: Field) -> Column:
    if field.kind.startswith(("struct", "array", "map")):
        return F.to_json(field.value, {"ignoreNullFields": "false"})
    return field.value.cast("string")


def wrong_named(fields: Mapping[str, Field], most: int) -> dict[str, Column]:
    """Return conditions by the text of the mistake, for headers from one column each; `most`: maximum bytes."""
    if not fields:
        return {}
    sizes = [
        F.coalesce(F.octet_length(value) + F.lit(len(name.encode()) + OVERHEAD), F.lit(0)).cast("bigint")
        for name, value in _values(fields).items()
    ]
    wrong = {_too_large(most): reduce(add, sizes) + F.lit(OVERHEAD) > most}
    texts = [field.value for field in fields.values() if field.kind.startswith(_TEXT)]
    if texts:
        wrong["not UTF-8"] = reduce(or_, [F.coalesce(~F.is_valid_utf8(text), F.lit(False)) for text in texts])
    return wrong


def wrong_headers(field: Field, most: int) -> dict[str, Column]:
    """Return conditions by the text of the mistake, for one column with all headers; `most`: maximum bytes."""
    wrong: dict[str, Column] = {}
    if field.kind.startswith(_PAIRS):
        names = F.transform(field.value, lambda pair: pair["key"])
        values = F.transform(field.value, lambda pair: pair["value"])
        wrong["a name occurs twice"] = F.size(F.array_distinct(names)) < F.size(names)
        wrong["a header without a name"] = F.exists(names, lambda name: name.isNull())
    else:
        names, values = F.map_keys(field.value), F.map_values(field.value)
    not_text = F.exists(names, _is_no_text)
    wrong["not UTF-8"] = not_text if "binary" in field.kind else not_text | F.exists(values, _is_no_text)
    size = F.aggregate(
        F.concat(F.transform(names, _length), F.transform(values, _length)),
        F.lit(OVERHEAD).cast("bigint"),
        lambda total, length: total + length,
    )
    wrong[_too_large(most)] = size > most
    return wrong


def _too_large(most: int) -> str:
    return f"more than {most:,} bytes, with {OVERHEAD} for each header"


def _length(text: Column) -> Column:
    return (F.coalesce(F.octet_length(text), F.lit(0)) + OVERHEAD // 2).cast("bigint")


def _is_no_text(text: Column) -> Column:
    return F.coalesce(~F.is_valid_utf8(text), F.lit(False))

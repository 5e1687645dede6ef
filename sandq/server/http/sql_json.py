"""Encode rows of SQL results as JSON."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from typing import Any, Final

from sandq.model.errors import InvalidRequest

_EXACT: Final = 1 << 53
"""Integers beyond this are encoded as text: many JSON parsers would lose their last digits."""
_SLICE: Final = 500
"""Number of rows that are encoded together."""


def as_json(table: Any, limit: int, most: int) -> bytes:
    """Return `columns`, `rows` (up to `limit`) and `more`. Raise InvalidRequest if they exceed `most` bytes."""
    if table is None:
        return json.dumps({"columns": [], "rows": [], "more": False}).encode()
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    parts: list[str] = []
    size = 0
    for start in range(0, min(limit, table.num_rows), _SLICE):
        part = table.slice(start, min(_SLICE, limit - start))
        cells = [[_plain(cell) for cell in column.to_pylist()] for column in part.columns]
        text = json.dumps([list(row) for row in zip(*cells, strict=True)])[1:-1]
        size += len(text)
        if size > most:
            raise InvalidRequest(f"the result has more than {most:,} bytes: select fewer columns or rows")
        parts.append(text)
    head = json.dumps({"columns": columns, "more": table.num_rows > limit})[:-1]
    return f'{head}, "rows": [{", ".join(parts)}]}}'.encode()


def _plain(cell: Any) -> Any:
    """Return a cell as a type that JSON has. Bytes become text if they are UTF-8, otherwise {"base64": ...}."""
    if cell is None or isinstance(cell, (bool, str)):
        return cell
    if isinstance(cell, int):
        return cell if -_EXACT < cell < _EXACT else str(cell)
    if isinstance(cell, float):
        return cell if cell == cell and abs(cell) != float("inf") else str(cell)
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(timespec="milliseconds" if cell.microsecond % 1000 == 0 else "microseconds") + "Z"
    if isinstance(cell, decimal.Decimal):
        return _plain(int(cell)) if cell == cell.to_integral_value() else str(cell)
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(cell).decode()}
    if isinstance(cell, list):
        return [_plain(one) for one in cell]
    if isinstance(cell, dict):
        return {str(name): _plain(one) for name, one in cell.items()}
    return str(cell)

"""Messages as lines of JSON: `produce --jsonl` reads what `consume -o jsonl` writes.

The fields are those of HTTP (`sandq/client/json_format.py`, docs/sandctl.md). `consume`, `message list --values` and
`dead list --values` add further fields (offset, id, state, ...). `produce` ignores these and refuses every other name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandq.client import LeasedMessage, Message

LINE_BYTES_MAX = 256 << 20
"""Maximum size of an input line, or of a file that is sent as one message, in bytes. It bounds the memory for input."""


class BadLine(Exception):
    """Raised for an input line that is not a valid message. The text says why."""


def parse_line(line: bytes, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a line's message as arguments of `Producer.send`. Raises BadLine. `headers` apply to lines without
    headers."""
    from sandq.client.json_format import read_message
    from sandq.errors import InvalidRequest
    from sandq.model.json_values import read_strictly

    try:
        found = read_strictly(line.decode())
    except ValueError as error:  # includes JSONDecodeError and UnicodeDecodeError
        raise BadLine(f"not JSON: {error}") from None
    try:
        if headers and isinstance(found, dict) and found.get("headers") is None:
            found = {**found, "headers": dict(headers)}
        return read_message(found)
    except InvalidRequest as error:
        raise BadLine(error.message) from None


def message_record(message: Message | LeasedMessage) -> dict[str, Any]:
    """Return a delivered message as a JSON object."""
    from sandq.client.json_format import message_json

    return message_json(message)

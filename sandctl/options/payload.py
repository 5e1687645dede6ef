"""Payload and headers of messages, from the command line or a file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import BinaryIO, cast

import click

from sandctl.output.jsonl import LINE_BYTES_MAX


def open_source(path: str | None, *, needed: bool) -> BinaryIO:
    """Open the source of the messages. click wraps standard input so that it is not closed."""
    if not needed:
        return io.BytesIO()
    try:
        return cast(BinaryIO, click.open_file(path or "-", "rb"))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None


def whole(source: BinaryIO) -> bytes:
    """Return all bytes of the source. Raises UsageError if no message can be that large."""
    data = source.read(LINE_BYTES_MAX + 1)
    if len(data) > LINE_BYTES_MAX:
        raise click.UsageError(
            f"--file is one message, and this one is larger than {LINE_BYTES_MAX >> 20} MiB; --lines or --jsonl?"
        )
    return data


def as_json(value: bytes, headers: Mapping[str, str] | None) -> tuple[bytes, dict[str, str]]:
    """Return a value as compact JSON, and its headers with the content type. Raises UsageError unless the value is
    JSON."""
    from sandq.errors import InvalidRequest
    from sandq.model.json_values import MISSING, content_of, read_strictly

    try:
        return content_of(MISSING, read_strictly(value.decode()), headers)
    except (ValueError, InvalidRequest) as error:
        raise click.UsageError(f"--json: the value is no JSON: {error}") from None


def headers_of(headers: tuple[str, ...], option: str = "--header") -> dict[str, str] | None:
    """Return the headers of an option with NAME=VALUE. Raises UsageError if a header has another form."""
    found = {}
    for header in headers:
        name, separator, value = header.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{option} {header}: NAME=VALUE is expected")
        found[name] = value
    return found or None

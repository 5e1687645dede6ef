"""What a check of `sandq doctor` gives."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "failed", "skipped"]


class Check(NamedTuple):
    """`what` was looked at, what was `found`, and what to do about it (empty: nothing)."""

    what: str
    state: State
    found: str
    todo: str = ""


def ok(what: str, found: str) -> Check:
    """All is well."""
    return Check(what, "ok", found)


def warning(what: str, found: str, todo: str) -> Check:
    """A node runs with it, but not well, or not for long."""
    return Check(what, "warning", found, todo)


def failed(what: str, found: str, todo: str) -> Check:
    """A node cannot start or work with it."""
    return Check(what, "failed", found, todo)


def skipped(what: str, why: str) -> Check:
    """It could not be looked at, or must not be."""
    return Check(what, "skipped", why)


def bytes_text(count: int) -> str:
    """As people say it: "1.5 GiB"."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"

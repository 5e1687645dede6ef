"""The result of one check of `sandq doctor`."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "failed", "skipped"]


class Check(NamedTuple):
    """A subject (`what`), its state, the finding, and the remedy (empty: none is needed)."""

    what: str
    state: State
    found: str
    todo: str = ""


def ok(what: str, found: str) -> Check:
    """Return a check without a problem."""
    return Check(what, "ok", found)


def warning(what: str, found: str, todo: str) -> Check:
    """Return a check whose problem allows a node to run, but not well, or not for long."""
    return Check(what, "warning", found, todo)


def failed(what: str, found: str, todo: str) -> Check:
    """Return a check whose problem prevents a node from starting or working."""
    return Check(what, "failed", found, todo)


def skipped(what: str, why: str) -> Check:
    """Return a check that was not done, because it is impossible or not allowed."""
    return Check(what, "skipped", why)


def bytes_text(count: int) -> str:
    """Return a size in the largest fitting unit, like "1.5 GiB"."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"

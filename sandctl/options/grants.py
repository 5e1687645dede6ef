"""Options that say what somebody may do, and until when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.options.times import DURATION

if TYPE_CHECKING:
    from sandq.client import Identity

F = TypeVar("F", bound=Callable[..., Any])


def grant_option(command: F) -> F:
    """`--grant`, which may be given again."""
    return click.option(
        "--grant",
        "grants",
        metavar="GRANT",
        multiple=True,
        help="A right or a role, and the topics and groups that it is for: produce, writer:billing.*, "
        "consume:billing.*/mail-*. May be given again.",
    )(command)


def expires_options(command: F) -> F:
    """`--expires` and `--never-expires`."""
    command = click.option("--never-expires", "never", is_flag=True, help="It does not expire.")(command)
    return click.option("--expires", type=DURATION, metavar="DURATION", help="It expires after so long.")(command)


def expiry(expires: timedelta | datetime | None, never: bool) -> timedelta | datetime | None:
    """As the client takes it; UsageError unless one of both, at most, was given."""
    if expires is not None and never:
        raise click.UsageError("--expires goes without --never-expires")
    return expires


def identity_row(one: Identity) -> dict[str, Any]:
    """An identity as it is printed, but for who it is."""
    from sandq.model.times import format_instant

    return {
        "grants": list(one.grants),
        "expires": None if one.expires_ms is None else format_instant(one.expires_ms),
        "created": format_instant(one.created_ms),
        "quota": dict(one.quota) or None,
        "note": one.note or None,
    }

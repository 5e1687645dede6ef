"""The messages that a command changes: named messages, or a window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sandctl.options.times import Window, raw
from sandctl.output.results import say, show_rows
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Messages

F = TypeVar("F", bound=Callable[..., Any])

_TOGETHER = 1000
"""Maximum number of concurrent changes to messages that the user named. Concurrent changes share frames."""

EXIT_FAILED = 1

_WHICH = "name the messages in one way: ID..., --unique-key K, a window (--since, --until, --key-prefix), or --all"


@dataclass(frozen=True)
class Target:
    """One message, named by its id or by its unique key."""

    id: str | None
    unique_key: bytes | None
    tenant: str | None = None
    key: bytes | None = None
    """Key of the message. With a unique key, it is part of the message's name."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the name as the client's methods take it."""
        if self.unique_key is None:
            return {"id": self.id}
        named: dict[str, Any] = {"unique_key": self.unique_key, **self._tenant}
        return named if self.key is None else named | {"key": self.key}

    @property
    def name(self) -> str:
        """Return the name as text."""
        if self.unique_key is None:
            return str(self.id)
        text = f"unique key {_shown(self.unique_key)}"
        return text if self.key is None else f"{text} of key {_shown(self.key)}"

    @property
    def record(self) -> dict[str, Any]:
        """Return the name as a JSON object."""
        from sandctl.output.records import key_record

        if self.unique_key is None:
            return {"id": self.id}
        named = key_record("unique_key", self.unique_key) | self._tenant
        return named if self.key is None else named | key_record("key", self.key)

    @property
    def _tenant(self) -> dict[str, Any]:
        return {} if self.tenant is None else {"tenant": self.tenant}


@dataclass(frozen=True)
class UniqueName:
    """The options `--unique-key`, `--key` and `--tenant`, which together name one message."""

    unique_key: str | None = None
    tenant: str | None = None
    key: str | None = None

    @property
    def is_given(self) -> bool:
        """Return whether a unique key was given."""
        return self.unique_key is not None

    def check(self) -> None:
        """Raise UsageError if a tenant or a key is given without a unique key, or if tenant and key are given."""
        if self.tenant is not None and self.unique_key is None:
            raise click.UsageError("--tenant needs --unique-key: it says whose unique key this is")
        if self.key is not None and self.unique_key is None:
            raise click.UsageError("--key needs --unique-key; use --key-prefix for many messages")
        if self.key is not None and self.tenant is not None:
            raise click.UsageError(
                "--key and --tenant cannot be used together: names in a fair topic have tenants, others have keys"
            )

    def target(self) -> Target:
        """Return the named message."""
        return Target(None, raw(self.unique_key), self.tenant, raw(self.key))


def unique_key_options(command: F) -> F:
    """Add `--unique-key`, `--key` and `--tenant`, which name one message, as `name`."""

    @wraps(command)
    def with_name(*, unique_key: str | None, key: str | None, tenant: str | None, **others: Any) -> Any:
        return command(name=UniqueName(unique_key, tenant, key), **others)

    options = click.option("--tenant", metavar="T", help="With --unique-key, in a fair topic.  [default: default]")(
        with_name
    )
    options = click.option("--key", metavar="K", help="With --unique-key: the key of the message, if it has one.")(
        options
    )
    options = click.option("--unique-key", metavar="K", help="The message with this unique key.")(options)
    return cast("F", options)


def one(message_id: str | None, name: UniqueName) -> Target:
    """Return the named message. Raises UsageError unless it is named in exactly one way."""
    if (message_id is None) == (not name.is_given):
        raise click.UsageError("name the message: either its ID or --unique-key K")
    name.check()
    return name.target() if message_id is None else Target(message_id, None)


def named(ids: Sequence[str], name: UniqueName) -> list[Target]:
    """Return the named messages. Raises UsageError unless they are named in exactly one way."""
    if bool(ids) == name.is_given:
        raise click.UsageError("name the messages: either ID... or --unique-key K")
    name.check()
    return [name.target()] if name.is_given else [Target(one_id, None) for one_id in dict.fromkeys(ids)]


def named_or_window(ids: Sequence[str], name: UniqueName, everything: bool, window: Window) -> list[Target] | Window:
    """Return the named messages or the window. Raises UsageError unless exactly one of the two is given."""
    window.check_prefixes()
    ways = (bool(ids), name.is_given, everything, not window.is_open)
    if sum(ways) != 1:
        raise click.UsageError(_WHICH if not any(ways) else f"{_WHICH}, not several")
    name.check()
    return named(ids, name) if ids or name.is_given else window


def _shown(key: bytes) -> str:
    """Return a key as text."""
    return repr(key.decode("utf-8", "backslashreplace"))


Change = Callable[["Messages", Target], Awaitable[dict[str, Any]]]


async def change_each(client: Client, topic: str, targets: Sequence[Target], change: Change) -> list[dict[str, Any]]:
    """Return the outcome of each change, in order. A failure for one message does not stop the others."""
    import anyio

    from sandq.errors import NotFound, TooLate, UnknownGroup, UnknownPartition, UnknownTopic

    messages = client.messages(topic)
    outcomes: list[dict[str, Any]] = [{} for _ in targets]
    limiter = anyio.CapacityLimiter(_TOGETHER)

    async def do(number: int, target: Target) -> None:
        async with limiter:
            try:
                outcomes[number] = {**target.record, **await change(messages, target)}
            except TooLate as error:
                outcomes[number] = {**target.record, "outcome": "too_late", "state": error.details.get("state")}
            except (UnknownTopic, UnknownPartition, UnknownGroup):
                raise
            except NotFound as error:
                tenant = error.details.get("tenant")  # in a fair topic: the tenant in which the message was searched
                outcomes[number] = {**target.record, **({"tenant": tenant} if tenant else {}), "outcome": "not_found"}

    async with anyio.create_task_group() as tasks:
        for number, target in enumerate(targets):
            tasks.start_soon(do, number, target)
    return outcomes


def show_outcomes(targets: Sequence[Target], outcomes: Sequence[dict[str, Any]], wanted: str) -> None:
    """Print a line per message: on standard output if it was changed, else on standard error, with exit code 1."""
    failed = [row for row in outcomes if row["outcome"] != wanted]
    if settings().output == "table":
        for target, row in zip(targets, outcomes, strict=True):
            say(_sentence(target, row), err=row["outcome"] != wanted)
    else:
        show_rows(outcomes, {})
    if failed:
        click.get_current_context().exit(EXIT_FAILED)


def _sentence(target: Target, row: dict[str, Any]) -> str:
    if row["outcome"] == "too_late":
        is_gone = row["state"] == "gone"
        what = "gone (acked by every group, purged, or trimmed)" if is_gone else row["state"]
        return f"{target.name}: too late, it is {what}"
    if row["outcome"] == "not_found":
        if "tenant" in row and target.tenant is None:
            return f"{target.name}: not found for tenant {row['tenant']}; name the tenant with --tenant"
        if target.unique_key is not None and target.tenant is None and target.key is None:
            return f"{target.name}: not found; if the message has a key, give --key too"
        return f"{target.name}: not found"
    if row["outcome"] == "not_leased":
        return f"{target.name}: not leased, it is {row['state']}"
    if row["outcome"] == "lost":
        return f"{target.name}: the lease was no longer held; nothing was done"
    if row["outcome"] == "moved":
        ranked = f", priority {row['priority']}" if "priority" in row else ""
        return f"moved {target.name} to {row['deliver_at']}{ranked} ({row['offset']})"
    return f"{row['outcome'].replace('_', ' ')} {target.name}"

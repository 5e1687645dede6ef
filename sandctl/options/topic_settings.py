"""The settings of topics and groups as options, and as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_BACKOFF_KEYS = {
    "backoff": "kind",
    "backoff_first": "first",
    "backoff_factor": "factor",
    "backoff_cap": "cap",
    "backoff_jitter": "jitter_percent",
}
# Option -> setting, of those whose text the broker reads.
_PLAIN = {
    "lease": "lease",
    "delete_on_ack": "delete_on_ack",
    "ttl": "ttl",
    "retention": "retention",
    "retain_for": "retain",
    "retain_bytes": "retain_bytes",
    "group_ttl": "group_ttl",
    "max_message_bytes": "max_message_bytes",
    "max_delay": "max_delay",
    "max_lease": "max_lease",
    "max_request_rate": "max_request_rate",
    "max_request_burst": "max_request_burst",
    "dedup_window": "dedup_window",
    "dead_letter_topic": "dead_letter_topic",
    "ordering": "ordering",
    "max_in_flight_per_key": "max_in_flight_per_key",
    "ageing": "ageing",
    "tenants": "tenants",
    "history": "history",
    "tombstone_retention": "tombstone_retention",
    "partition_delimiter": "partition_delimiter",
}


def _option(default: str | None, name: str, help_text: str, **more: Any) -> Callable[[F], F]:
    """An option whose default the broker knows; an update has none."""
    return click.option(name, default=None, help=f"{help_text}  [default: {default}]" if default else help_text, **more)


def retry_options(defaults: bool) -> Callable[[F], F]:
    """Attempts and back-off: what a topic and a group may have."""

    def default(text: str) -> str | None:
        return text if defaults else None

    options = (
        _option(default("10"), "--max-attempts", "After so many deliveries a message is dead.", metavar="N|none"),
        _option(default("none"), "--max-snoozes", "Further snoozes count as attempts.", metavar="N|none"),
        _option(
            default("exponential"),
            "--backoff",
            "How long a nacked message waits.",
            type=click.Choice(["exponential", "fixed", "linear", "none"]),
        ),
        _option(default("1s"), "--backoff-first", "The wait after the first attempt.", metavar="DURATION"),
        _option(default("2"), "--backoff-factor", "Of exponential.", type=float, metavar="NUMBER"),
        _option(default("10m"), "--backoff-cap", "The longest wait.", metavar="DURATION"),
        _option(default("20"), "--backoff-jitter", "Spread around the wait.", type=int, metavar="PERCENT"),
    )
    return _all(options)


def group_options() -> Callable[[F], F]:
    """All settings that a group may have of its own, without defaults."""
    per_key = _option(
        None,
        "--max-in-flight-per-key",
        "So many messages of a key at a time with the group's consumers: not more than the topic's.",
        metavar="N",
    )
    return _all((retry_options(False), per_key))


def settings_options(*, update: bool) -> Callable[[F], F]:
    """All settings of a topic; `update`: those that can be changed, without defaults."""

    def default(text: str) -> str | None:
        return None if update else text

    lease = _option(default("30s"), "--lease", "How long a consumer may hold a message.", metavar="DURATION")
    rest = [
        _option(
            default("none"),
            "--ttl",
            "So long after its time a message that nobody took is dead; compacted: so long a value stays.",
            metavar="DURATION|none",
        ),
        _option(
            default("delete-on-ack"),
            "--delete-on-ack/--retain",
            "Whether messages go once every group acked them, or stay.",
        ),
        _option(
            default("1m"),
            "--history",
            "Compacted: how long every write can be read, also one that a later one came after.",
            metavar="DURATION",
        ),
        _option(
            default("1d"),
            "--tombstone-retention",
            "Compacted: how long it can be read that a key was deleted.",
            metavar="DURATION",
        ),
        _option(default("0s"), "--retention", "How long what every group acked is kept still.", metavar="DURATION"),
        _option(default("none"), "--retain-for", "With --retain: for so long.", metavar="DURATION|none"),
        _option(
            default("none"), "--retain-bytes", "With --retain: so much a partition, like 10GiB.", metavar="SIZE|none"
        ),
        _option(default("7d"), "--group-ttl", "A group without consumers goes after so long.", metavar="DURATION|none"),
        _option(
            default("10m"),
            "--dedup-window",
            "How long a unique key stays taken after its delivery.",
            metavar="DURATION",
        ),
        _option(
            default("none"), "--dead-letter-topic", "Another topic, to which dead letters go.", metavar="TOPIC|none"
        ),
    ]
    rest += [
        _option(
            default("none"),
            "--max-message-bytes",
            "How large a message's value may be: 64KiB.",
            metavar="SIZE|none",
        ),
        _option(
            default("none"),
            "--max-delay",
            "How far ahead a message may be, instead of what the nodes take.",
            metavar="DURATION|none",
        ),
        _option(
            default("none"), "--max-lease", "How long a lease may be, whoever asks for it.", metavar="DURATION|none"
        ),
        _option(
            default("none"),
            "--max-request-rate",
            "Requests a second that each client may send about it, to each node: 50/s.",
            metavar="RATE|none",
        ),
        _option(
            default("none"),
            "--max-request-burst",
            "So many of them at once after a pause; none: those of a second.",
            metavar="N|none",
        ),
        _option(
            default("none"),
            "--ageing",
            "Priority and fair: how long a message waits to count as one priority better (lower).",
            metavar="DURATION|none",
        ),
        _option(
            default("{}"),
            "--tenants",
            'Fair: {"PATTERN": {"weight": N, "max_in_flight": N}, ...}; a pattern is a tenant, PREFIX.* or *.',
            metavar="JSON",
        ),
    ]
    if not update:
        ordering = "key: one message of a key at a time. It cannot be changed later."
        rest.append(_option("none", "--ordering", ordering, type=click.Choice(["none", "key"])))
        rest.append(
            _option(
                "none",
                "--partition-delimiter",
                "Compacted: what is before the first one in a key chooses its partition. It cannot be changed later.",
                metavar="TEXT|none",
            )
        )
        rest.append(
            _option(
                "none",
                "--max-in-flight-per-key",
                "So many messages of a key at a time with a group's consumers. It cannot be changed later.",
                metavar="N|none",
            )
        )
    return _all((lease, retry_options(not update), *rest))


def _all(options: tuple[Callable[[Any], Any], ...]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of a topic's settings; the broker checks their values."""
    settings: dict[str, Any] = {
        setting: options[option] for option, setting in _PLAIN.items() if options.get(option) is not None
    }
    backoff = {key: options[option] for option, key in _BACKOFF_KEYS.items() if options.get(option) is not None}
    if backoff:
        settings["backoff"] = backoff
    for name in ("max_attempts", "max_snoozes"):
        most = options.get(name)
        if most is None:
            continue
        if most != "none" and not (most.isascii() and most.isdecimal()):
            hint = f"--{name.replace('_', '-')}"
            raise click.BadParameter(f"{most!r} is neither a number nor none", param_hint=hint)
        settings[name] = None if most == "none" else int(most)
    return settings


def shown(record: Mapping[str, Any], kind: str = "timer") -> dict[str, Any]:
    """Settings of a record under the names and in the units in which they are given."""
    from sandq.client.json_format import settings_json

    return settings_json(record, kind)

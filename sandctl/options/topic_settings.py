"""Settings of topics and groups as options, and their text form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sandq.model.setting_texts import FACTOR, PERCENT, SETTINGS

F = TypeVar("F", bound=Callable[..., Any])

_BACKOFF_KEYS = {
    "backoff": "kind",
    "backoff_first": "first",
    "backoff_factor": "factor",
    "backoff_cap": "cap",
    "backoff_jitter": "jitter_percent",
}
BACKOFF_OPTIONS = tuple(_BACKOFF_KEYS)
"""Names of the options for a back-off, which have the parts of the setting `backoff`."""
_TYPES = {FACTOR: float, PERCENT: int}
# Options to settings whose text the broker parses.
_PLAIN = {
    "lease": "lease",
    "delete_on_ack": "delete_on_ack",
    "ttl": "ttl",
    "on_expiry": "on_expiry",
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
    "push_targets": "push_targets",
    "dead_retention": "dead_retention",
    "max_dead_letters": "max_dead_letters",
    "precision": "precision",
    "ordering": "ordering",
    "max_in_flight_per_key": "max_in_flight_per_key",
    "ageing": "ageing",
    "tenants": "tenants",
    "history": "history",
    "tombstone_retention": "tombstone_retention",
    "partition_delimiter": "partition_delimiter",
}


def _option(default: str | None, option: str, setting: str, help_text: str = "") -> Callable[[F], F]:
    """Add an option for a setting (`sandq.model.setting_texts`). The broker applies the default. An update has no
    defaults.

    `help_text` replaces the setting's own text.
    """
    text = SETTINGS[setting]
    says = help_text or text.says
    if text.is_fixed and not help_text:
        says += " It cannot be changed later."
    more: dict[str, Any] = {"metavar": text.metavar} if text.unit else {"type": click.Choice(text.choices)}
    if setting in ("delete_on_ack", "push_targets"):
        more = {}
    elif text.unit in _TYPES:
        more["type"] = _TYPES[text.unit]
    return click.option(option, default=None, help=f"{says}  [default: {default}]" if default else says, **more)


def retry_options(defaults: bool) -> Callable[[F], F]:
    """Add the options for attempts and back-off, which topics and groups have."""

    def default(text: str) -> str | None:
        return text if defaults else None

    snoozes = _option(default("none"), "--max-snoozes", "max_snoozes")
    attempts, *backoff = _rules_options(default)
    return _all((attempts, snoozes, *backoff))


def message_options() -> Callable[[F], F]:
    """Add the options for the attempts, the back-off and the cost of a message, without defaults."""
    cost = click.option(
        "--cost", metavar="N", type=int, help="What a delivery costs, for groups whose rate has a unit.  [default: 1]"
    )
    return _all((*_rules_options(lambda text: None), cost))


def message_rules(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attempts, the back-off and the cost of a message, as `produce` of the client takes them."""
    settings = settings_of(options)
    if options.get("cost") is not None:
        settings["cost"] = options["cost"]
    if "max_attempts" in settings and settings["max_attempts"] is None:
        settings["max_attempts"] = "none"
    return settings


def _rules_options(default: Callable[[str], str | None]) -> tuple[Callable[[F], F], ...]:
    """Return the options for attempts and back-off."""
    return (
        _option(default("10"), "--max-attempts", "max_attempts"),
        _option(default("exponential"), "--backoff", "backoff.kind"),
        _option(default("1s"), "--backoff-first", "backoff.first"),
        _option(default("2"), "--backoff-factor", "backoff.factor"),
        _option(default("10m"), "--backoff-cap", "backoff.cap"),
        _option(default("20"), "--backoff-jitter", "backoff.jitter_percent"),
    )


def group_options() -> Callable[[F], F]:
    """Add options for all settings that a group can have, without defaults."""
    per_key = click.option(
        "--max-in-flight-per-key",
        default=None,
        help="Messages of a key that the group's consumers may hold at a time; up to the topic's number.",
        metavar="N",
    )
    return _all((retry_options(False), _option(None, "--on-expiry", "on_expiry"), per_key))


def settings_options(*, update: bool) -> Callable[[F], F]:
    """Add all settings of a topic. With `update`: only settings that can change, without defaults."""

    def default(text: str) -> str | None:
        return None if update else text

    lease = _option(default("30s"), "--lease", "lease")
    rest = [
        _option(default("none"), "--ttl", "ttl"),
        _option(default("dead"), "--on-expiry", "on_expiry"),
        _option(default("delete-on-ack"), "--delete-on-ack/--retain", "delete_on_ack"),
        _option(default("1m"), "--history", "history"),
        _option(default("1d"), "--tombstone-retention", "tombstone_retention"),
        _option(default("0s"), "--retention", "retention"),
        _option(default("none"), "--retain-for", "retain", "With --retain: the greatest age of a message."),
        _option(default("none"), "--retain-bytes", "retain_bytes", "With --retain: the most bytes of a partition."),
        _option(default("7d"), "--group-ttl", "group_ttl"),
        _option(default("10m"), "--dedup-window", "dedup_window"),
        _option(default("none"), "--dead-letter-topic", "dead_letter_topic"),
        _option(default("no-push-targets"), "--push-targets/--no-push-targets", "push_targets"),
        _option(default("none"), "--dead-retention", "dead_retention"),
        _option(default("none"), "--max-dead-letters", "max_dead_letters"),
        _option(default("auto"), "--precision", "precision"),
        _option(default("none"), "--max-message-bytes", "max_message_bytes"),
        _option(default("none"), "--max-delay", "max_delay"),
        _option(default("none"), "--max-lease", "max_lease"),
        _option(default("none"), "--max-request-rate", "max_request_rate"),
        _option(default("none"), "--max-request-burst", "max_request_burst"),
        _option(default("none"), "--ageing", "ageing"),
        _option(default("{}"), "--tenants", "tenants"),
    ]
    if not update:
        rest += [
            _option("none", "--ordering", "ordering"),
            _option("none", "--partition-delimiter", "partition_delimiter"),
            _option("none", "--max-in-flight-per-key", "max_in_flight_per_key"),
        ]
    return _all((lease, retry_options(not update), *rest))


def _all(options: tuple[Callable[[Any], Any], ...]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, by the names of a topic's settings; the broker checks their values."""
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
    """Return settings of a record, under the names and in the units of their options."""
    from sandq.client.json_format import settings_json

    return settings_json(record, kind)

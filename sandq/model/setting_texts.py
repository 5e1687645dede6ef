"""Descriptions of topic settings: one source for the help of `sandctl` and for the fields of the console.

This module imports no slow modules, so that `sandctl --help` stays fast. Values and ranges: `sandq.model.settings`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DURATION: Final = "DURATION"
DURATION_OR_AUTO: Final = "DURATION|auto"
SIZE: Final = "SIZE"
RATE: Final = "RATE"
NUMBER: Final = "N"
FACTOR: Final = "NUMBER"
PERCENT: Final = "PERCENT"
TOPIC: Final = "TOPIC"
TEXT: Final = "TEXT"
JSON: Final = "JSON"
UNITS: Final = {
    DURATION: "a duration (30s, 10m, 2h)",
    DURATION_OR_AUTO: "a duration (5ms, 100ms, 1s) or auto",
    SIZE: "a size (64KiB, 10MiB)",
    RATE: "a rate (5/s, 100/m)",
    NUMBER: "a whole number",
    FACTOR: "a number",
    PERCENT: "percent",
    TOPIC: "the name of a topic",
    TEXT: "text",
    JSON: "JSON",
}
"""How a value of each unit is written, with examples."""


class SettingText(NamedTuple):
    """The description of a setting."""

    says: str
    """One sentence for users."""
    unit: str = ""
    """One of `UNITS`; empty if the value is one of `choices`."""
    allows_none: bool = False
    choices: tuple[str, ...] = ()
    is_fixed: bool = False
    """True if the setting cannot be changed after the topic's creation."""

    @property
    def metavar(self) -> str:
        """Placeholder for the value on a command line."""
        return f"{self.unit}|none" if self.allows_none else self.unit


SETTINGS: Final = {
    "lease": SettingText("How long a consumer may hold a message.", DURATION),
    "max_attempts": SettingText("Number of deliveries after which a message is dead.", NUMBER, True),
    "max_snoozes": SettingText("Number of snoozes that do not count as attempts.", NUMBER, True),
    "backoff.kind": SettingText(
        "How the wait of a nacked message grows.", choices=("exponential", "fixed", "linear", "none")
    ),
    "backoff.first": SettingText("The wait after the first attempt.", DURATION),
    "backoff.factor": SettingText("Exponential: each wait is the previous one times this factor.", FACTOR),
    "backoff.cap": SettingText("The longest wait, before the jitter.", DURATION),
    "backoff.jitter_percent": SettingText("How far waits are spread around their length, each way.", PERCENT),
    "ttl": SettingText(
        "How long after its delivery time an unleased message expires; compacted: lifetime of a value.",
        DURATION,
        True,
    ),
    "on_expiry": SettingText(
        "Whether an expired message becomes a dead letter, or is dropped and counted.", choices=("dead", "drop")
    ),
    "delete_on_ack": SettingText(
        "Whether messages are deleted once every group has acked them.", choices=("true", "false")
    ),
    "history": SettingText(
        "Compacted: how long every write can be read, also after a later write of its key.", DURATION
    ),
    "tombstone_retention": SettingText("Compacted: how long the deletion of a key can be read.", DURATION),
    "retention": SettingText("How long messages are kept after every group has acked them.", DURATION),
    "retain": SettingText("If acked messages stay: the maximum age of a message.", DURATION, True),
    "retain_bytes": SettingText("If acked messages stay: the maximum size of a partition.", SIZE, True),
    "group_ttl": SettingText("How long a group without consumers stays.", DURATION, True),
    "dedup_window": SettingText("How long a unique key stays taken after its delivery.", DURATION),
    "dead_letter_topic": SettingText("A topic to which dead letters are sent.", TOPIC, True),
    "push_targets": SettingText(
        "Whether messages may have URLs, to which groups push them.", choices=("true", "false")
    ),
    "dead_retention": SettingText("How long dead letters are kept after their death.", DURATION, True),
    "max_dead_letters": SettingText(
        "Number of dead letters that each partition keeps for a group: the newest.", NUMBER, True
    ),
    "precision": SettingText(
        "How long a due message may wait for others that become due; auto: the node chooses.", DURATION_OR_AUTO
    ),
    "max_message_bytes": SettingText("The maximum size of a message's value.", SIZE, True),
    "max_delay": SettingText("How far ahead a message may be, instead of the nodes' limit.", DURATION, True),
    "max_lease": SettingText("The longest lease, including leases that consumers request.", DURATION, True),
    "max_request_rate": SettingText("Requests about the topic that each client may send to each node.", RATE, True),
    "max_request_burst": SettingText(
        "Number of these requests at once after a pause; none: those of a second.", NUMBER, True
    ),
    "ageing": SettingText(
        "Priority and fair: how long a message waits to count as one priority better (lower).", DURATION, True
    ),
    "tenants": SettingText(
        'Fair: {"PATTERN": {"weight": N, "max_in_flight": N}, ...}; a pattern is a tenant, PREFIX.* or *.', JSON
    ),
    "ordering": SettingText("key: one message of a key at a time.", choices=("none", "key"), is_fixed=True),
    "partition_delimiter": SettingText(
        "Compacted: the part of a key before the first of these chooses its partition.", TEXT, True, is_fixed=True
    ),
    "max_in_flight_per_key": SettingText(
        "Number of messages of a key that the consumers of a group hold at a time.", NUMBER, True, is_fixed=True
    ),
}
"""All settings of topics. The parts of the back-off are named `backoff.PART`."""

"""The sections `gossip` and `serf`: how nodes find each other.

gossip   {profile, encrypt, keys_file, and every interval and multiplier of the profile}   membership: gossip
serf     {rpc, auth_file}                                                                   membership: serf
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final, Literal

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from sandq.model import schema
from sandq.model.config_types import Address, FilePath, PeerAddress
from sandq.model.gossip_timing import PROFILES, Timing

_DAY_MS = 86_400_000
ACCEPT: Final = "accept"
SEND: Final = "send"
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")


def _encryption(value: object) -> bool | str:
    """Return True, False, ACCEPT or SEND for a value or its text."""
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else str(value)
    if word in (ACCEPT, SEND):
        return word
    if word not in _TRUE + _FALSE:
        raise schema.mistake(f"{value!r:.60} is none of false, accept, send, true")
    return word in _TRUE


class GossipSection(schema.Section):
    """Gossip between nodes. Values that are not set come from the profile. `gossip_timing` explains the effect of
    each value."""

    profile: Literal["lan", "local", "fast"] = "lan"
    encrypt: Annotated[bool | str, PlainValidator(_encryption)] = True
    """With `accept` and `send`, the node also accepts unencrypted packets, so that encryption can be turned on node by
    node. With `accept`, it sends its own packets unencrypted."""
    keys_file: FilePath | None = None
    probe_interval_ms: Annotated[int | None, schema.duration(10, 60_000)] = Field(default=None, alias="probe_interval")
    probe_timeout_ms: Annotated[int | None, schema.duration(5, 60_000)] = Field(default=None, alias="probe_timeout")
    indirect_checks: Annotated[int | None, schema.integer(0, 20)] = None
    suspicion_mult: Annotated[int | None, schema.integer(1, 100)] = None
    suspicion_max_mult: Annotated[int | None, schema.integer(1, 100)] = None
    gossip_interval_ms: Annotated[int | None, schema.duration(10, 60_000)] = Field(
        default=None, alias="gossip_interval"
    )
    gossip_fanout: Annotated[int | None, schema.integer(1, 100)] = None
    retransmit_mult: Annotated[int | None, schema.integer(1, 100)] = None
    push_pull_interval_ms: Annotated[int | None, schema.duration(100, _DAY_MS)] = Field(
        default=None, alias="push_pull_interval"
    )
    stream_timeout_ms: Annotated[int | None, schema.duration(10, 60_000)] = Field(default=None, alias="stream_timeout")
    dead_gossip_ms: Annotated[int | None, schema.duration(100, _DAY_MS)] = Field(default=None, alias="dead_gossip")
    reconnect_interval_ms: Annotated[int | None, schema.duration(100, _DAY_MS)] = Field(
        default=None, alias="reconnect_interval"
    )
    forget_ms: Annotated[int | None, schema.duration(1000, 365 * _DAY_MS)] = Field(default=None, alias="forget")

    @field_validator("probe_timeout_ms")
    @classmethod
    def _within_the_interval(cls, timeout_ms: int, info: ValidationInfo) -> int:
        """Check that a probe ends before the next one begins."""
        interval_ms = info.data.get("probe_interval_ms")
        profile = PROFILES[info.data.get("profile", "lan")]
        if timeout_ms >= (interval_ms if interval_ms is not None else profile.probe_interval_s * 1000):
            raise schema.mistake("must be less than probe_interval: in the rest of it others are asked")
        return timeout_ms

    @property
    def timing(self) -> Timing:
        """Timing of the profile, with the values that are set here."""
        set_here: dict[str, float | int] = {}
        for field in dataclasses.fields(Timing):
            of_ms = field.name.endswith("_s")
            value = getattr(self, field.name[:-1] + "ms" if of_ms else field.name)
            if value is not None:
                set_here[field.name] = value / 1000 if of_ms else value
        timing = dataclasses.replace(PROFILES[self.profile], **set_here)  # type: ignore[arg-type]
        # The timeout must be less than the interval: if a short interval is set alone, shorten the timeout, too.
        if self.probe_timeout_ms is None and timing.probe_timeout_s >= timing.probe_interval_s:
            timing = dataclasses.replace(timing, probe_timeout_s=timing.probe_interval_s / 2)
        return timing


class SerfSection(schema.Section):
    """The Serf agent that runs on this machine."""

    rpc: PeerAddress = Address("127.0.0.1", 7373)
    auth_file: FilePath | None = None

"""Settings of a topic, as a user writes them, and the record of them that the cluster keeps.

    lease              duration  30s  1s to 12h                   how long a consumer may hold a message
    max_attempts       number    10   1 to 1000, or none          then the message is dead
    backoff                                                       how long a message waits after attempt n:
      kind             text           exponential (the default),  first * factor ** (n - 1),
                                      fixed, linear, none         first, first * n, 0
      first            duration  1s   0s to 7d
      factor           number    2    1 to 100                    of exponential
      cap              duration  10m  0s to 7d                    never longer than this, before the jitter
      jitter_percent   number    20   0 to 100                    spread evenly around it, so much each way
    delete_on_ack      yes, no   yes                              a batch goes once every group acked it

In the record all numbers are integers (the factor in thousandths), because replicas calculate with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from sandq.model import schema
from sandq.model.errors import InvalidSetting

_DAY_MS = 86_400_000
_MAX_BACKOFF_MS = 7 * _DAY_MS


def _attempts_or_none(value: object) -> int | None:
    return None if value is None or value == "none" else schema.whole(value, 1, 1000)


class Backoff(schema.Section):
    """How long a message waits before its next attempt."""

    kind: Literal["exponential", "fixed", "linear", "none"] = "exponential"
    first_ms: Annotated[int, schema.duration(0, _MAX_BACKOFF_MS)] = Field(default=1000, alias="first")
    factor: Annotated[float, BeforeValidator(schema.no_bool), Field(ge=1, le=100)] = 2.0
    cap_ms: Annotated[int, schema.duration(0, _MAX_BACKOFF_MS)] = Field(default=600_000, alias="cap")
    jitter_percent: Annotated[int, schema.integer(0, 100)] = 20

    def record(self) -> dict[str, Any]:
        """Plain values; integers only."""
        return {
            "kind": self.kind,
            "first_ms": self.first_ms,
            "factor_permille": round(self.factor * 1000),
            "cap_ms": self.cap_ms,
            "jitter_percent": self.jitter_percent,
        }


class TopicSettings(schema.Section):
    """Settings of one topic. Made by `parse_settings` or `from_record`."""

    lease_ms: Annotated[int, schema.duration(1000, _DAY_MS // 2)] = Field(default=30_000, alias="lease")
    max_attempts: Annotated[int | None, BeforeValidator(_attempts_or_none)] = 10
    backoff: Backoff = Backoff()
    delete_on_ack: bool = True

    def record(self) -> dict[str, Any]:
        """What msgpack stores and replicas read; persisted: a key is never renamed."""
        return {
            "lease_ms": self.lease_ms,
            "max_attempts": self.max_attempts,
            "backoff": self.backoff.record(),
            "delete_on_ack": self.delete_on_ack,
        }


def parse_settings(mapping: Mapping[str, object]) -> TopicSettings:
    """The settings a user wrote, the rest by default; one InvalidSetting names every mistake."""
    try:
        return TopicSettings.model_validate(dict(mapping))
    except ValidationError as error:
        mistakes = [str(mistake) for mistake in schema.mistakes_of(error, TopicSettings)]
    raise InvalidSetting("; ".join(mistakes), mistakes=mistakes)


def from_record(record: Mapping[str, Any]) -> TopicSettings:
    """The settings of a record: a key that an older version did not write has its default, unknown ones go.

    Not checked against the ranges: what was accepted once stays readable.
    """
    backoff = dict(record.get("backoff", {}))
    if "factor_permille" in backoff:
        backoff["factor"] = backoff["factor_permille"] / 1000
    known = {key: record[key] for key in TopicSettings.model_fields if key in record}
    known["backoff"] = Backoff.model_construct(**{k: backoff[k] for k in Backoff.model_fields if k in backoff})
    return TopicSettings.model_construct(**known)

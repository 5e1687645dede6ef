"""The options of one message to send: the same for `produce`, `send` and `send_many`, async and blocking.

`SendOptions` defines them. Methods that pass the options on declare `**options: Unpack[SendOptions]` and are decorated
with `takes_send_options`. `Producer.send`, async and blocking, and `MessageValidation.message` run once per message and
list the options explicitly, because a dictionary per message costs 12 to 20 % more CPU. A test compares their
signatures with `SendOptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict, TypeVar

from sandq.client.arguments import list_options
from sandq.client.producer.validation import Headers, Push, Value
from sandq.model.retries import Backoff, MaxAttempts
from sandq.model.times import Duration, Instant

F = TypeVar("F", bound=Callable[..., Any])

SEND_DEFAULTS: Final[Mapping[str, Any]] = {"on_conflict": "reject"}
"""Defaults of the options that are not None by default."""


class SendOptions(TypedDict, total=False):
    """Options of one message to send. All of them are optional.

    `key`: messages with the same key go to the same partition (unless partitions were added, and some of the messages
    have unique keys). A message without key and partition goes to any partition.
    `headers`: names and values that consumers get with the message.

    `deliver_at`: the instant of delivery. `delay`: seconds or text ("90s"), counted from the moment the broker stores
    the message. `delay_ms`: the delay in whole milliseconds. Give at most one of the three; without any, the message is
    delivered immediately. A time more than ten years ahead raises InvalidTime, because it usually has a wrong unit. The
    limit is the topic's `max_delay`, or else the node's `limits.delay_days`. `ttl`: a message that no consumer holds is
    dead this long after its delivery time.

    `partition`: the number of the partition to store the message in.

    `unique_key`: 1 to 1,024 bytes, unique until every group has leased the message, and for the topic's `dedup_window`
    after that. With a `key`, the unique key is unique within this key, and the key determines the partition. Without a
    `key`, the unique key determines the partition. `on_conflict`: what to do if the unique key is taken.
    `receipt.outcome` says what was done.

    - "reject" (the default): the receipt raises DuplicateKey.
    - "replace": cancel the other message. The receipt raises DuplicateKey if a group holds the other message. If all
      groups are done with it, the new message is stored in addition.
    - "replace_pending": cancel the other message. The receipt raises DuplicateKey if any group has leased the other
      message.
    - "ignore": store nothing. The receipt gives the id of the message that has the key.
    - "debounce": cancel the other message, as "replace" does. If a group holds the other message, or is done with it,
      the new message is stored in addition, and the key names it from then on. Never raises DuplicateKey.
    - "throttle": store at most one message of the key in each `window`, counted from the moment when the broker stores
      it. Other messages of the window are not stored, and the receipt gives the id of the stored one. Never raises
      DuplicateKey. If the other message was not throttled, this is "ignore".

    `max_wait`: for "debounce": the message is due at most this long after the first message of its series. A series are
    debounced messages that replaced each other before their first attempt. Without `max_wait`, each message can
    postpone the delivery again. It is at least the `delay` and at most ten years.

    `window`: for "throttle", which needs it: more than 0, at most 7 days. `edge`: for "throttle". "leading" (the
    default): store the first message of a window. "both": also store the newest of the other messages, for delivery at
    the end of the window, where the next window begins. "both" allows no delivery time.

    `priority`: for priority and fair topics; lower numbers are delivered first, 0 is the default.
    `tenant`: for fair topics; "default" if left out. There the tenant alone chooses the partition.

    `max_attempts`, `backoff`: the message's own values of these settings, for example 20, and `{"kind": "fixed",
    "first": "1h", "cap": "1h"}`. They override the settings of its topic and of the topic's groups. `max_attempts`
    "none": the message never dies of failed attempts. Keys that `backoff` leaves out have the defaults of the setting.
    Messages of compacted topics have no own values.

    `cost`: what a delivery of the message costs, for groups whose rate has a unit, for example its tokens: 1 (the
    default) to 1,000,000,000.

    `push`: the URL to which groups with `targets="message"` send the message: a `sandq.PushTarget`, or a mapping with
    its fields. The topic needs `push_targets`. The target is stored as the header `sandq-push`.
    """

    key: Value | None
    headers: Headers | None
    deliver_at: Instant | None
    delay: Duration | None
    delay_ms: int | None
    partition: int | None
    ttl: Duration | None
    unique_key: Value | None
    on_conflict: str
    max_wait: Duration | None
    window: Duration | None
    edge: str | None
    priority: int | None
    tenant: str | None
    max_attempts: MaxAttempts | None
    backoff: Backoff | None
    cost: int | None
    push: Push | None


def takes_send_options(method: F) -> F:
    """Decorate a method with `**options: Unpack[SendOptions]`: its signature, and so `help()`, shows each option."""
    return list_options(method, SendOptions, SEND_DEFAULTS)

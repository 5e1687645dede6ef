"""Numbers of groups that are pushed: of those that have a label, and of the others together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from sandq.push.outcomes import End
from sandq.push.pump import Doing, PushCounts
from sandq.server.metrics.text import Exposition
from sandq.server.metrics.topics import OTHER

Pushed = tuple[str, str]


def tell_pushes(
    counts: Mapping[Pushed, PushCounts],
    doing: Mapping[Pushed, str],
    labelled: Container[Pushed],
    told: Exposition,
) -> None:
    """Tell of groups that have a label (topic, group); the others are summed up."""
    ends: dict[Pushed, Counter[End]] = {}
    in_flight, waiting = Counter[Pushed](), Counter[Pushed]()
    for pushed, counted in counts.items():
        label = pushed if pushed in labelled else (OTHER, OTHER)
        ends.setdefault(label, Counter()).update(counted.ends)
        in_flight[label] += counted.in_flight
        waiting[label] += doing.get(pushed) == Doing.WAITING
    for label, of_label in ends.items():
        for end in End:
            labels = told.labels("sandq_push_messages_total", *label, str(end))
            told.value("sandq_push_messages_total", of_label[end], labels)
        labels = told.labels("sandq_push_in_flight", *label)
        told.value("sandq_push_in_flight", in_flight[label], labels)
        told.value("sandq_push_waiting", waiting[label], labels)

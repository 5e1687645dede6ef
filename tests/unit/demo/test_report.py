"""Tests of the demo's verdict: lost, early and late messages, and its failures. Tests of its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.line_report import LineLedger, faults, line_hash
from demo.line_report import rows as line_rows
from demo.lines import BadInput, Line, survey
from demo.lines import parse as parse_line
from demo.lines import read as read_lines
from demo.reminders import LONGEST_S, Reminder, parse_reminders, plan
from demo.report import Failover, Lateness, Ledger, Verdict, percentile, verdict
from demo.view import verdict_rows
from sandq.model import offsets

T = 1_700_000_000_000


def message(number: int, partition: int = 0) -> str:
    return offsets.to_text(offsets.pack(T, 1 + number, 0, partition))


def ledger(
    *, delivered: dict[int, float], produced: int, failovers: tuple[Failover, ...] = (), partition: int = 0
) -> Ledger:
    """Reminder n is due at T + 100 n and stored at T; `delivered`: n -> lateness of its first delivery."""
    made = Ledger(produced, failovers=list(failovers))
    for number in range(produced):
        made.due_ms[f"r{number}"] = T + 100 * number
        made.receipts[message(number, partition)] = f"r{number}", float(T)
        made.open.add(message(number, partition))
    for number, lateness_ms in delivered.items():
        made.deliver("w", f"r{number}", message(number, partition), T + 100 * number + lateness_ms)
        made.ack(message(number, partition))
    return made


def test_complete_run_has_no_faults() -> None:
    found = verdict(ledger(produced=4, delivered={n: n + 1.0 for n in range(4)}))
    assert (found.produced, found.delivered, found.acked, found.lost, found.early) == (4, 4, 4, 0, 0)
    assert found.all == found.undisturbed == Lateness(4, 1.0, 2.0, 4.0, 4.0)
    assert found.faults == []
    assert found.exit_code == 0


def test_stored_message_without_delivery_is_lost() -> None:
    found = verdict(ledger(produced=3, delivered={0: 1.0, 2: 1.0}))
    assert (found.lost, found.delivered) == (1, 2)
    assert found.exit_code == 1
    assert "1 lost" in found.faults[0]
    assert ("lost", "1") in verdict_rows(found)


def test_copy_of_a_reminder_does_not_replace_a_lost_message() -> None:
    made = ledger(produced=1, delivered={})
    made.deliver("w", "r0", message(9), T + 1.0)
    assert verdict(made).lost == 1


def test_delivery_before_its_time_is_early() -> None:
    found = verdict(ledger(produced=2, delivered={0: -1.5, 1: 0.0}))
    assert found.early == 1
    assert found.exit_code == 1
    assert "1 delivered before" in found.faults[0]
    assert found.all.least_ms == -1.5


def test_clocks_may_differ_by_a_millisecond() -> None:
    found = verdict(ledger(produced=1, delivered={0: -1.0}))
    assert (found.early, found.exit_code) == (0, 0)


def test_redelivery_is_allowed_but_not_after_the_ack() -> None:
    made = ledger(produced=2, delivered={0: 1.0})
    made.deliver("w", "r1", message(1), T + 101.0)
    made.deliver("v", "r1", message(1), T + 3101.0)
    made.ack(message(1))
    found = verdict(made)
    assert (found.redelivered, found.after_ack, found.exit_code) == (1, 0, 0)
    assert found.all.most_ms == 1.0  # the first delivery counts
    made.deliver("v", "r1", message(1), T + 9000.0)
    found = verdict(made)
    assert (found.redelivered, found.after_ack, found.exit_code) == (2, 1, 1)


def test_a_reminder_that_is_stored_twice_fails_the_demo() -> None:
    made = ledger(produced=1, delivered={0: 1.0})
    made.deliver("w", "r0", message(9), T + 2.0)
    found = verdict(made)
    assert (found.stored_twice, found.exit_code) == (1, 1)
    assert "1 stored twice" in found.faults[0]
    assert ("doubled", "1") in verdict_rows(found)


def test_failed_produce_fails_the_demo() -> None:
    made = ledger(produced=2, delivered={0: 0.0, 1: 0.0})
    made.planned = 4
    made.failed["r2"] = "no"
    found = verdict(made)
    assert found.exit_code == 1
    assert [text.split()[0] for text in found.faults] == ["1", "1"]  # one message failed, and one had no result


def failover(killed: int, led: int, delivered: int, confirmed: int | None = None) -> Failover:
    """Return a failover of the node that led partition 0."""
    confirmed_ms = None if confirmed is None else float(T + confirmed)
    return Failover("node1", frozenset({0}), T + killed, T + led, T + delivered, confirmed_ms)


DISTURBED = {n: 1.0 for n in (0, 1, 7, 8, 9)} | {n: 621.0 - 100 * n for n in range(2, 7)}
"""Due at 0, 100, ... 900. The leader is away from 250 on, and workers are back at 620."""


def test_lateness_during_failover_is_reported_separately() -> None:
    found = verdict(ledger(produced=10, delivered=DISTURBED, failovers=(failover(250, 600, 620),)))
    assert found.all.count == 10
    assert found.undisturbed == Lateness(5, 1.0, 1.0, 1.0, 1.0)
    # The message due at 200 was not delivered when the leader was killed, so it waited too.
    assert found.in_failover == Lateness(5, 21.0, 221.0, 421.0, 421.0)
    rows = dict(verdict_rows(found))
    assert rows["failover"] == "from the kill of node1 to new leaders 350 ms, the first delivery 370 ms"
    assert rows["  failover"].endswith("(of 5): partition 0 had no leader")


def test_late_message_of_unaffected_partition_is_not_excused() -> None:
    found = verdict(ledger(produced=10, delivered=DISTURBED, failovers=(failover(250, 600, 620),), partition=1))
    assert (found.in_failover.count, found.undisturbed.count) == (0, 10)
    assert found.undisturbed.most_ms == 421.0


def test_failover_ends_with_a_delivery_and_a_receipt_of_its_partitions() -> None:
    made = ledger(produced=0, delivered={}, failovers=(Failover("node1", frozenset({0}), T + 10.0),))
    (over,) = made.failovers
    made.deliver("w", "r0", message(1), T + 11.0)  # the message was already in transit
    assert over.delivered_ms is None
    over.led_ms = T + 20.0
    made.deliver("w", "r1", message(2, partition=1), T + 21.0)
    made.confirm("r2", message(3, partition=1), T + 22.0)
    assert (over.delivered_ms, over.confirmed_ms) == (None, None), "partition 1 always had its leader"
    made.deliver("w", "r3", message(4), T + 23.0)
    made.confirm("r4", message(5), T + 24.0)
    made.deliver("w", "r5", message(6), T + 25.0)
    made.confirm("r5", message(6), T + 26.0)
    assert (over.delivered_ms, over.confirmed_ms) == (T + 23.0, T + 24.0)


def test_message_stored_late_counts_for_the_failover() -> None:
    made = ledger(produced=8, delivered={}, failovers=(failover(250, 600, 620, confirmed=700),))
    made.receipts[message(6)] = "r6", T + 700.0  # due at 600, confirmed after the producer returned
    made.receipts[message(7)] = "r7", T + 705.0
    for number, at in ((6, 750.0), (7, 760.0)):
        made.deliver("w", f"r{number}", message(number), T + at)
    found = verdict(made)
    assert (found.in_failover.count, found.undisturbed.count) == (2, 0)


def test_a_failover_without_end() -> None:
    made = ledger(produced=4, delivered={0: 1.0}, failovers=(Failover("node1", frozenset({0}), T + 150.0),))
    made.deliver("w", "r1", message(1), T + 160.0)  # the message was already in transit
    found = verdict(made)
    assert (found.lost, found.in_failover.count, found.exit_code) == (2, 1, 1)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 50, 5.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        (range(1, 101), 99, 99),
        ([1.0, 9.0], 99, 9.0),
    ],
)
def test_percentiles_are_nearest_ranks(values: list[float], percent: float, expected: float) -> None:
    assert percentile(list(values), percent) == expected


def test_verdict_of_empty_ledger() -> None:
    found: Verdict = verdict(Ledger(0))
    assert found.all == Lateness(0, 0.0, 0.0, 0.0, 0.0)
    assert dict(verdict_rows(found))["lateness"] == "none"


# The input.


def test_reminders_are_read() -> None:
    lines = [
        b'{"id": "a", "text": "x", "in": "1.5s", "customer": "Zo\xc3\xab"}\n',
        b"\n",
        b'{"id":"b","text":"y","in":7}',
    ]
    assert parse_reminders(lines, "f") == [
        Reminder("a", "Zoë", 1500, lines[0].strip()),
        Reminder("b", None, 7, lines[2]),
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "a JSON object"),
        (b'{"text": "x", "in": 1}', "id: text is expected"),
        (b'{"id": "b", "text": 5, "in": 1}', "text: text is expected"),
        (b'{"id": "b", "text": "x"}', "in: the delay is missing"),
        (b'{"id": "b", "text": "x", "in": "soon"}', "in: "),
        (b'{"id": "b", "text": "x", "in": -1}', "in: "),
        (b'{"id": "b", "text": "x", "in": 1.5}', "in: "),
        (b'{"id": "b", "text": "x", "in": true}', "in: "),
        (b'{"id": "b", "text": "x", "in": 1, "customer": 4}', "customer: "),
        (b'{"id": "a", "text": "x", "in": 1}', "that of line 1"),
    ],
)
def test_invalid_line_is_named(line: bytes, what: str) -> None:
    with pytest.raises(BadInput, match=r"^f:3: ") as caught:
        parse_reminders([b'{"id": "a", "text": "x", "in": 1}', b"", line], "f")
    assert what in str(caught.value)


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(BadInput, match="no reminders"):
        parse_reminders([b"\n"], "f")


def test_plan_keeps_short_delays_and_scales_long_ones() -> None:
    short = [Reminder("a", None, 12_000, b"")]
    assert plan(short, None).total_s == pytest.approx(20)
    assert plan(short, None).scale == 1.0
    long = [Reminder("a", None, 3_600_000, b"")]
    assert plan(long, None).total_s == LONGEST_S
    assert plan(long, None).scale == pytest.approx(LONGEST_S * 0.6 / 3600)
    assert plan(short, 5).scale == pytest.approx(0.25)
    assert plan([Reminder("a", None, 0, b"")], None).scale == 1.0


# Write these lines to a file.


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"hello", Line(1, b"hello")),
        (b"  \r", Line(1, b"  \r")),
        (b"\xff\x00", Line(1, b"\xff\x00")),
        (b"{broken", Line(1, b"{broken")),
        (b"[1]", Line(1, b"[1]")),
        (b'{"a": 1}\r', Line(1, b'{"a": 1}\r')),
        (b'{"a": ' + b"9" * 5000 + b"}", Line(1, b'{"a": ' + b"9" * 5000 + b"}")),
        (b"{" + b'"a":{' * 100_000, Line(1, b"{" + b'"a":{' * 100_000)),
        (b'\xef\xbb\xbf{"text": "x"}', Line(1, b"x")),
        ('{"text": "é", "key": "k"}'.encode(), Line(1, "é".encode(), b"k")),
        (b'{"value": {"b": [1, null]}, "text": "x"}', Line(1, b'{"b":[1,null]}')),
        (b'{"value": "v", "key": 7}', Line(1, b"v", b"7")),
        (b'{"text": ""}', Line(1, b"")),
        (b'{"text": null, "key": null}', Line(1, b'{"text": null, "key": null}')),
        (b'{"text": "\\ud800"}', Line(1, b'{"text": "\\ud800"}')),
        (b'{"text": "x", "delay": "1.5s"}', Line(1, b"x", delay_ms=1500)),
        (b'{"delay": 2}', Line(1, b'{"delay": 2}', delay_ms=2000)),
        (b'{"text": "x", "deliver_at": "2030-01-01T00:00:00Z", "delay": 1}', Line(1, b"x", at_ms=1_893_456_000_000)),
        (b'{"text": "x", "deliver_at": 1893456000000}', Line(1, b"x", at_ms=1_893_456_000_000)),
        (b'{"text": "x", "deliver_at": "tomorrow"}', Line(1, b"x", odd_time=True)),
        (b'{"text": "x", "delay": -1}', Line(1, b"x", odd_time=True)),
        (b'{"text": "x", "delay": [1]}', Line(1, b"x", odd_time=True)),
        (b'{"text": "x", "delay": NaN}', Line(1, b"x", odd_time=True)),
        (b'{"text": "x", "key": "%s"}' % (b"k" * 70_000), Line(1, b"x")),
    ],
)
def test_any_line_becomes_a_message(data: bytes, line: Line) -> None:
    assert parse_line(1, data) == line


def test_a_file_is_surveyed(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b'a\n\n\r\nb\r\n{"delay": "5s"}\n{"delay": "x"}\n{"deliver_at": %d}\nlast' % (T + 9000))
    found = survey(file, T)
    assert (found.lines, found.empty, found.timed, found.odd_times, found.latest_ms) == (6, 2, 2, 1, 9000)
    assert (found.longest_bytes, found.size_bytes) == (29, 1 + 2 + 15 + 14 + 29 + 4)
    assert [line and line.number for line in read_lines(file)] == [1, None, None, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nothing to send, it is empty"),
        (b"\n\r\n\n", "nothing to send, its 3 lines are empty"),
        (b"a\n" + b"x" * (8 * 1024 * 1024 + 1), ":2: the line is longer than a message can be"),
        (b"x" * (8 * 1024 * 1024 + 1) + b"\nb\n", ":1: the line is longer"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        survey(file, T)
    assert words in str(caught.value) and str(file) in str(caught.value)


def test_input_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "not a regular file"),
        (tmp_path / "none", "no such file"),
        (Path("/dev/null"), "not a regular"),
    ):
        with pytest.raises(BadInput, match=words):
            survey(path, T)


def test_longest_line_is_a_message(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for end in (b"", b"\n"):
        file.write_bytes(b"x" * (8 * 1024 * 1024) + end)
        assert survey(file, T).longest_bytes == 8 * 1024 * 1024


def sent(*values: bytes) -> LineLedger:
    """Lines 1, 3, 4, ... were sent, due at T; line 2 is empty."""
    made = LineLedger(len(values))
    for number, value in enumerate(values):
        if number == 1:
            made.skip()
        made.send(Line(number + 1 + (number > 0), value), T)
        made.confirmed += 1
    return made


def test_each_line_is_delivered_once() -> None:
    made = sent(b"a", b"b", b"a")
    for number, value, late_ms in ((1, b"a", 0.5), (3, b"b", 2.0), (4, b"a", 30.0)):
        assert not made.complete
        made.deliver(number, value, None, T + late_ms)
    assert made.complete and faults(made) == []
    assert made.lateness() == Lateness(3, 0.5, 2.0, 30.0, 30.0)
    assert dict(line_rows(made))["delivered"] == "3 lines"


def test_problems_of_lines_are_named() -> None:
    made = sent(b"a", b"b", b"c", b"d")
    made.planned = 5
    made.deliver(1, b"a", None, T - 1.5)
    made.deliver(1, b"a", None, T + 1.0)
    made.deliver(3, b"B", None, T + 1.0)
    made.deliver(4, b"c", b"key", T + 1.0)
    for stranger in (2, 99, -1, 0, None, "1"):
        made.deliver(stranger, b"a", None, T + 1.0)
    made.failed[5] = "no"
    made.confirmed -= 1
    assert faults(made) == [
        "2 lost: sent, and never delivered (lines 3, 4)",
        "1 delivered more often than they stand in the file (line 1)",
        "2 delivered with a different value or key",
        "6 delivered but never sent",
        "1 delivered before their time",
        "1 could not be produced (line 5: no)",
        "1 never sent",
    ]


def test_number_of_named_lost_lines_is_limited() -> None:
    made = sent(*[b"x"] * 100)
    assert faults(made) == ["100 lost: sent, and never delivered (lines 1, 3, 4, 5, 6, ...)"]
    made.planned = 90
    assert faults(made)[1] == "the file has grown in the meantime by 10 lines"
    made.confirmed = 0
    assert faults(made)[2] == "100 never confirmed by the broker"


def test_failed_produce_may_still_be_delivered() -> None:
    made = sent(b"a")
    made.confirmed, made.failed[1] = 0, "timed out"
    assert made.lost == 0
    made.deliver(1, b"a", None, T + 1.0)
    assert (made.lost, made.delivered, made.complete) == (0, 1, True)


def test_hashes_distinguish_values_and_keys() -> None:
    pairs = [(b"", None), (b"", b""), (b"a", None), (b"a", b""), (b"a", b"k"), (b"ak", None), (b"k", b"a")]
    assert len({line_hash(value, key) for value, key in pairs}) == len(pairs)


def test_lateness_has_nearest_ranks() -> None:
    made = sent(*[b"%d" % number for number in range(200)])
    for number in range(200):
        made.deliver(number + 1 + (number > 0), b"%d" % number, None, T + number + 1)
    assert made.lateness() == Lateness(200, 1.0, 100.0, 198.0, 200.0)

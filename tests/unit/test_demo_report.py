"""The demo's verdict: what counts as lost, early, late, and when it fails. And what its input must look like."""

from __future__ import annotations

import pytest

from demo.reminders import LONGEST_S, BadInput, Reminder, parse_reminders, plan
from demo.report import Lateness, Ledger, Outage, Verdict, percentile, verdict
from demo.view import verdict_rows

T = 1_700_000_000_000


def ledger(*, delivered: dict[int, float], produced: int, outages: tuple[Outage, ...] = ()) -> Ledger:
    """Reminder n is due at T + 100 n and stored at T; `delivered`: n -> lateness of its first delivery."""
    made = Ledger(produced, outages=list(outages))
    for number in range(produced):
        made.due_ms[f"r{number}"] = T + 100 * number
        made.receipts[f"m{number}"] = f"r{number}", float(T)
        made.open.add(f"m{number}")
    for number, lateness_ms in delivered.items():
        made.deliver("w", f"r{number}", f"m{number}", T + 100 * number + lateness_ms)
        made.ack(f"m{number}")
    return made


def test_all_is_well() -> None:
    found = verdict(ledger(produced=4, delivered={n: n + 1.0 for n in range(4)}))
    assert (found.produced, found.delivered, found.acked, found.lost, found.early) == (4, 4, 4, 0, 0)
    assert found.all == found.while_up == Lateness(4, 1.0, 2.0, 4.0, 4.0)
    assert found.faults == []
    assert found.exit_code == 0


def test_what_was_stored_and_never_delivered_is_lost() -> None:
    found = verdict(ledger(produced=3, delivered={0: 1.0, 2: 1.0}))
    assert (found.lost, found.delivered) == (1, 2)
    assert found.exit_code == 1
    assert "1 lost" in found.faults[0]
    assert ("lost", "1") in verdict_rows(found)


def test_another_copy_of_the_reminder_does_not_make_up_for_a_lost_message() -> None:
    made = ledger(produced=1, delivered={})
    made.deliver("w", "r0", "another message", T + 1.0)
    assert verdict(made).lost == 1


def test_what_came_before_its_time_is_early() -> None:
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
    made.deliver("w", "r1", "m1", T + 101.0)
    made.deliver("v", "r1", "m1", T + 3101.0)
    made.ack("m1")
    found = verdict(made)
    assert (found.redelivered, found.after_ack, found.exit_code) == (1, 0, 0)
    assert found.all.most_ms == 1.0  # the first delivery counts
    made.deliver("v", "r1", "m1", T + 9000.0)
    found = verdict(made)
    assert (found.redelivered, found.after_ack, found.exit_code) == (2, 1, 1)


def test_a_reminder_stored_twice_is_told_and_no_fault() -> None:
    made = ledger(produced=1, delivered={0: 1.0})
    made.deliver("w", "r0", "m9", T + 2.0)
    found = verdict(made)
    assert (found.stored_twice, found.exit_code) == (1, 0)
    assert "stored twice" in dict(verdict_rows(found))


def test_what_could_not_be_produced_fails_the_demo() -> None:
    made = ledger(produced=2, delivered={0: 0.0, 1: 0.0})
    made.planned = 4
    made.failed["r2"] = "no"
    found = verdict(made)
    assert found.exit_code == 1
    assert [text.split()[0] for text in found.faults] == ["1", "1"]  # one failed, of one nothing was heard


def outage(killed: int, served: int, delivered: int, confirmed: int | None = None) -> Outage:
    return Outage(T + killed, T + served, T + delivered, None if confirmed is None else T + confirmed)


def test_lateness_of_the_outage_is_told_apart() -> None:
    # Due at 0, 100, ... 900; the node is away from 250, and workers are back at 620.
    delivered = {n: 1.0 for n in (0, 1, 7, 8, 9)} | {n: 621.0 - 100 * n for n in range(2, 7)}
    found = verdict(ledger(produced=10, delivered=delivered, outages=(outage(250, 600, 620),)))
    assert found.all.count == 10
    assert found.while_up == Lateness(5, 1.0, 1.0, 1.0, 1.0)
    # Due at 200 and in nobody's hands when the node was killed: it waited as well.
    assert found.while_down == Lateness(5, 21.0, 221.0, 421.0, 421.0)
    assert dict(verdict_rows(found))["outage"].endswith("serving 350 ms, the first delivery 370 ms")


def test_what_its_producer_could_not_store_in_time_is_late_because_of_the_outage() -> None:
    made = ledger(produced=8, delivered={}, outages=(outage(250, 600, 620, confirmed=700),))
    made.receipts["m6"] = "r6", T + 700.0  # due at 600, confirmed when the producer was back
    made.receipts["m7"] = "r7", T + 705.0
    for number, at in ((6, 750.0), (7, 760.0)):
        made.deliver("w", f"r{number}", f"m{number}", T + at)
    found = verdict(made)
    assert (found.while_down.count, found.while_up.count) == (2, 0)


def test_an_outage_without_end() -> None:
    made = ledger(produced=4, delivered={0: 1.0}, outages=(Outage(T + 150.0),))
    made.deliver("w", "r1", "m1", T + 160.0)  # it was on its way already
    found = verdict(made)
    assert (found.lost, found.while_down.count, found.exit_code) == (2, 1, 1)


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


def test_nothing_at_all() -> None:
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
def test_a_bad_line_is_named(line: bytes, what: str) -> None:
    with pytest.raises(BadInput, match=r"^f:3: ") as caught:
        parse_reminders([b'{"id": "a", "text": "x", "in": 1}', b"", line], "f")
    assert what in str(caught.value)


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(BadInput, match="no reminders"):
        parse_reminders([b"\n"], "f")


def test_the_plan_keeps_delays_that_fit_and_shortens_others() -> None:
    short = [Reminder("a", None, 12_000, b"")]
    assert plan(short, None).total_s == pytest.approx(20)
    assert plan(short, None).scale == 1.0
    long = [Reminder("a", None, 3_600_000, b"")]
    assert plan(long, None).total_s == LONGEST_S
    assert plan(long, None).scale == pytest.approx(LONGEST_S * 0.6 / 3600)
    assert plan(short, 5).scale == pytest.approx(0.25)
    assert plan([Reminder("a", None, 0, b"")], None).scale == 1.0

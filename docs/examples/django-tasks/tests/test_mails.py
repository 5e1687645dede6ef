"""Days of mails in a second: `broker.advance` moves the clock, and the worker sends the mails that are due."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from smtplib import SMTPRecipientsRefused, SMTPServerDisconnected

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.test.utils import override_settings
from sandq.errors import SandqError
from sandq.testing import Broker

from invoices import mails
from invoices import worker as worker_module
from invoices.models import Invoice

DAY = timedelta(days=1)


@pytest.fixture
def ada(broker: Broker) -> User:
    """Return a user. Their welcome mail is no message of the test."""
    user = User(username="ada", email="ada@example.org")
    User.objects.bulk_create([user])  # without signals
    return user


def subjects() -> list[str]:
    return [sent.subject for sent in mail.outbox]


def put(number: int, **fields: object) -> int:
    """Create or replace an invoice through the view. Return the HTTP status."""
    return Client().put(f"/invoices/{number}", fields, content_type="application/json").status_code


def test_mail_comes_at_its_time_and_not_before(broker: Broker, ada: User, worker: None) -> None:
    assert put(7, user=ada.pk, amount_cents=1250, due_at=(broker.now() + 2 * DAY).isoformat()) == 200
    broker.advance(2 * DAY - timedelta(milliseconds=1))
    assert subjects() == []
    broker.advance("1ms")
    assert subjects() == ["Invoice 7 is due"]
    assert (mail.outbox[0].to, mail.outbox[0].body) == (["ada@example.org"], "Please pay 12.50 euros.")
    broker.advance("1d")
    assert len(mail.outbox) == 1


@pytest.mark.parametrize("days", [1, 3])
def test_edit_moves_the_mail(broker: Broker, ada: User, worker: None, days: int) -> None:
    begun = broker.now()
    put(7, user=ada.pk, amount_cents=1250, due_at=(begun + 2 * DAY).isoformat())
    put(7, user=ada.pk, amount_cents=1250, due_at=(begun + days * DAY).isoformat())
    broker.advance(days * DAY - timedelta(milliseconds=1))
    assert subjects() == []
    broker.advance("2d")
    assert subjects() == ["Invoice 7 is due"]
    assert Invoice.objects.get(pk=7).mailed_due_at == begun + days * DAY


def test_edit_after_the_mail_sends_a_second_mail_only_for_a_new_due_time(
    broker: Broker, ada: User, worker: None
) -> None:
    due_at = broker.now() + DAY
    put(7, user=ada.pk, amount_cents=1250, due_at=due_at.isoformat())
    broker.advance("1d")
    put(7, user=ada.pk, amount_cents=9900, due_at=due_at.isoformat())
    broker.advance("1d")
    assert len(mail.outbox) == 1
    put(7, user=ada.pk, amount_cents=9900, due_at=(due_at + 2 * DAY).isoformat())
    broker.advance("1d")
    assert len(mail.outbox) == 2


def test_deletion_cancels_the_mail(broker: Broker, ada: User) -> None:
    put(7, user=ada.pk, amount_cents=1250, due_at=(broker.now() + 2 * DAY).isoformat())
    assert [message.json() for message in broker.pending(mails.TOPIC)] == [{"mail": "invoice-due", "id": 7}]
    assert Client().delete("/invoices/7").status_code == 204
    assert broker.pending(mails.TOPIC) == []
    assert Client().delete("/invoices/7").status_code == 404


def test_deletion_of_the_user_cancels_the_mails_of_their_invoices(broker: Broker, ada: User) -> None:
    for number in range(3):
        put(number, user=ada.pk, amount_cents=1250, due_at=(broker.now() + 2 * DAY).isoformat())
    assert len(broker.pending(mails.TOPIC)) == 3
    ada.delete()
    assert broker.pending(mails.TOPIC) == []


def test_payment_cancels_the_mail(broker: Broker, ada: User) -> None:
    due_at = (broker.now() + 2 * DAY).isoformat()
    put(7, user=ada.pk, amount_cents=1250, due_at=due_at)
    put(7, user=ada.pk, amount_cents=1250, due_at=due_at, paid=True)
    assert broker.pending(mails.TOPIC) == []


def test_failed_mail_is_tried_again_later_each_time(
    broker: Broker, ada: User, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_at = broker.now() + DAY
    attempts: list[timedelta] = []
    send = worker_module.send_mail

    def send_third(*arguments: object) -> None:
        attempts.append(broker.now() - due_at)
        if len(attempts) < 3:
            raise SMTPServerDisconnected("no")
        send(*arguments)

    monkeypatch.setattr(worker_module, "send_mail", send_third)
    put(7, user=ada.pk, amount_cents=1250, due_at=due_at.isoformat())
    broker.advance("25h")
    assert subjects() == ["Invoice 7 is due"]
    # The back-off is 1 minute and then 4, each with up to 20 % of jitter.
    first, second, third = attempts
    assert first == timedelta(0) and timedelta(seconds=48) <= second <= timedelta(seconds=72)
    assert timedelta(seconds=192) <= third - second <= timedelta(seconds=288)


def test_refused_recipient_is_a_dead_letter_at_once(
    broker: Broker, ada: User, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise SMTPRecipientsRefused({"ada@example.org": (550, b"no such user")})

    monkeypatch.setattr(worker_module, "send_mail", refuse)
    put(7, user=ada.pk, amount_cents=1250, due_at=broker.now().isoformat())
    broker.advance(0)
    (letter,) = broker.dead(mails.TOPIC, mails.GROUP)
    assert letter.json() == {"mail": "invoice-due", "id": 7}


def test_transaction_that_is_rolled_back_sends_nothing(broker: Broker, ada: User) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        User.objects.create(username="grace", email="grace@example.org")
        Invoice.objects.create(user=ada, amount_cents=1, due_at=broker.now())
        raise ZeroDivisionError
    assert broker.messages(mails.TOPIC) == []


def test_new_user_gets_one_welcome_mail(broker: Broker, worker: None) -> None:
    user = User.objects.create(username="grace", email="grace@example.org")
    user.save()
    mails.send_welcome(user.pk)
    broker.advance("1d")
    assert subjects() == ["Welcome"]


def test_message_that_was_lost_is_stored_again_at_night(
    broker: Broker, ada: User, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker cannot be reached after the commit. The request does not fail."""
    due_at = broker.now() + 2 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(mails, "client", lambda: (_ for _ in ()).throw(ConnectionError("no route to host")))
        assert put(7, user=ada.pk, amount_cents=1250, due_at=due_at.isoformat()) == 200
    broker.advance("36h")
    assert subjects() == []
    broker.advance("12h")
    assert subjects() == ["Invoice 7 is due"]


def test_move_that_was_lost_sends_no_early_mail(
    broker: Broker, ada: User, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_at = broker.now() + DAY
    put(7, user=ada.pk, amount_cents=1250, due_at=due_at.isoformat())
    Invoice.objects.update(due_at=due_at + DAY)  # `update` sends no signals
    broker.advance("1d")
    assert subjects() == []
    broker.advance("1d")
    assert subjects() == ["Invoice 7 is due"]


def test_bad_request_is_refused_with_the_reason(broker: Broker, ada: User) -> None:
    done = Client().put("/invoices/7", {"user": ada.pk, "due_at": "soon"}, content_type="application/json")
    assert done.status_code == 400 and set(done.json()["errors"]) == {"amount_cents", "due_at"}
    done = Client().put("/invoices/7", "[1]", content_type="application/json")
    assert done.json() == {"errors": {"body": ["a JSON object is expected"]}}
    assert broker.messages(mails.TOPIC) == []


@pytest.mark.parametrize(
    "wrong", [{"due_at": 1}, {"due_at": None}, {"user": 1e400}, {"user": {"id": 1}}, {"amount_cents": -1}]
)
def test_wrong_values_are_refused(broker: Broker, ada: User, wrong: dict[str, object]) -> None:
    fields = {"user": ada.pk, "amount_cents": 1250, "due_at": broker.now().isoformat()}
    assert put(7, **fields | wrong) == 400


@pytest.mark.parametrize("due_at", ["0001-01-01T00:00:00+14:00", "1999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"])
def test_due_time_that_cannot_be_stored_is_refused(broker: Broker, ada: User, due_at: str) -> None:
    assert put(7, user=ada.pk, amount_cents=1250, due_at=due_at) == 400
    assert not Invoice.objects.exists()


def test_number_that_cannot_be_stored_is_not_found(broker: Broker, ada: User) -> None:
    assert put(2**63, user=ada.pk, amount_cents=1250, due_at=broker.now().isoformat()) == 404


def test_json_that_is_nested_too_deeply_is_refused(broker: Broker) -> None:
    body = "[" * 100_000 + "]" * 100_000
    assert Client().put("/invoices/7", body, content_type="application/json").status_code == 400


def test_edit_while_the_worker_holds_the_message_is_no_error(broker: Broker, ada: User) -> None:
    due_at = broker.now()
    put(7, user=ada.pk, amount_cents=1250, due_at=due_at.isoformat())
    (held,) = mails.client().leases(mails.TOPIC, mails.GROUP).take(1)
    mails.plan_due_mail(7)
    Invoice.objects.update(paid=True)
    mails.plan_due_mail(7)
    assert [message.id for message in broker.messages(mails.TOPIC)] == [held.id]


def test_client_that_cannot_connect_is_closed(broker: Broker) -> None:
    before = {*threading.enumerate()}
    with override_settings(BROKER=["127.0.0.1:1"], BROKER_TIMEOUT="100ms"), pytest.raises(SandqError):
        mails.client()
    assert {*threading.enumerate()} == before


def test_process_after_a_fork_gets_a_client_of_its_own(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mails.client()
    assert mails.client() is client
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with mails.client() as other:
        assert other is not client


def test_run_worker_ends_on_sigterm(broker: Broker) -> None:
    def stop() -> None:
        broker.wait_for_consumers(mails.TOPIC, mails.GROUP)
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(SystemExit) as ended:
            call_command("run_worker")
    finally:
        signal.signal(signal.SIGTERM, previous)
        thread.join()
    assert ended.value.code == 0

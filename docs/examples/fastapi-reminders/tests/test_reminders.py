"""A month of reminders in a second. Virtual time begins on 2030-01-01."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
import sandq
from sandq.testing import AsyncBroker

from reminders import app as app_module
from reminders import worker
from reminders.app import app

pytestmark = pytest.mark.anyio

ADA = {"email": "ada@example.org", "ends": "2030-01-31T09:00:00Z"}


class Mailbox:
    """Records e-mails in place of a provider, and fails while `errors` is not empty."""

    def __init__(self, broker: AsyncBroker) -> None:
        self.broker = broker
        self.sent: list[str] = []
        self.attempts: list[str] = []
        self.errors: list[str] = []

    async def send(self, to: str, text: str, mail_id: str) -> None:
        self.attempts.append(f"{self.broker.now():%d %H:%M}")
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        self.sent.append(f"{self.broker.now():%d %H:%M} {to}: {text}")


@pytest.fixture
def mailbox(async_sandq_broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    mailbox = Mailbox(async_sandq_broker)
    monkeypatch.setattr(worker, "send_mail", mailbox.send)
    return mailbox


@asynccontextmanager
async def running_worker() -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.work, app.state.client)
        yield
        tasks.cancel_scope.cancel()


async def test_reminders_come_at_their_times_and_not_before(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    assert (await web.put("/users/ada", json=ADA)).status_code == 200
    async with running_worker():
        await async_sandq_broker.advance_to("2030-01-28T08:59:59.999Z")
        assert mailbox.sent == []
        await async_sandq_broker.advance("4d")
    soon = "28 09:00 ada@example.org: Your trial ends on 2030-01-31T09:00:00+00:00."
    assert mailbox.sent == [soon, "31 09:00 ada@example.org: Your trial has ended."]


async def test_payment_cancels_the_reminders(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    await web.put("/users/ada", json=ADA)
    async with running_worker():
        await async_sandq_broker.advance_to("2030-01-29T00:00:00Z")
        assert (await web.post("/users/ada/payment")).json() == {"cancelled": ["ended"]}
        await async_sandq_broker.advance("4d")
    assert len(mailbox.sent) == 1
    assert (await web.put("/users/ada", json=ADA)).status_code == 409, "a paid user has no trial"
    assert (await web.post("/users/grace/payment")).status_code == 404


async def test_changed_date_moves_the_reminders(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    await web.put("/users/ada", json=ADA)
    await web.put("/users/ada", json=ADA)  # a repeated request changes nothing
    await web.put("/users/ada", json=ADA | {"ends": "2030-02-10T12:00:00+02:00"})
    async with running_worker():
        await async_sandq_broker.advance_to("2030-02-11T00:00:00Z")
    assert [line[:8] for line in mailbox.sent] == ["07 10:00", "10 10:00"]
    assert (await web.put("/users/ada", json=ADA | {"ends": "2030-02-10T12:00:00"})).status_code == 422, "no time zone"


async def test_repeated_request_sends_no_second_mail(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    await web.put("/users/ada", json=ADA)
    async with running_worker():
        await async_sandq_broker.advance_to("2030-01-29T00:00:00Z")
        assert (await web.put("/users/ada", json=ADA)).status_code == 200
        await async_sandq_broker.advance("4d")
    assert [line[:8] for line in mailbox.sent] == ["28 09:00", "31 09:00"]


@pytest.mark.parametrize("earlier", ["2030-01-15T09:00:00Z", "2030-02-25T09:00:00Z"])
async def test_of_two_edits_at_once_the_stored_date_counts(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox, earlier: str
) -> None:
    """The request that stores its user first stores its reminders last."""
    client: sandq.Client = app.state.client
    produce = client.produce

    async def after_a_later_edit(*args: Any, **options: Any) -> str:
        patch.undo()
        assert (await web.put("/users/ada", json=ADA)).status_code == 200
        return await produce(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "produce", after_a_later_edit)
        assert (await web.put("/users/ada", json=ADA | {"ends": earlier})).status_code == 200
    async with running_worker():
        await async_sandq_broker.advance_to("2030-03-30T00:00:00Z")
    assert [line[:8] for line in mailbox.sent] == ["28 09:00", "31 09:00"]


async def test_reminder_of_an_earlier_date_sends_no_mail(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    """A request that ended after it stored its user has not moved the reminders."""
    await web.put("/users/ada", json=ADA)
    users = app.state.client.kv("users")
    entry = await users.get("ada")
    await users.put("ada", json=entry.json() | {"ends": "2030-02-10T10:00:00+00:00"})
    async with running_worker():
        await async_sandq_broker.advance_to("2030-03-01T00:00:00Z")
    assert [line[:8] for line in mailbox.sent] == ["07 10:00", "10 10:00"]


async def test_payment_and_edit_at_once_lose_nothing(web: httpx.AsyncClient, mailbox: Mailbox) -> None:
    await web.put("/users/ada", json=ADA)
    read = app_module.read_user

    async def read_before_an_edit(client: sandq.Client, user: str) -> tuple[dict[str, Any], str]:
        patch.undo()
        found = await read(client, user)
        await web.put("/users/ada", json=ADA | {"email": "new@example.org"})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "read_user", read_before_an_edit)
        assert (await web.post("/users/ada/payment")).status_code == 409
    assert (await web.post("/users/ada/payment")).status_code == 200
    stored = (await app.state.client.kv("users").get("ada")).json()
    assert (stored["email"], stored["paid"]) == ("new@example.org", True)


@pytest.mark.parametrize("ends", ["2099-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1999-12-31T00:00:00Z"])
async def test_date_out_of_range_changes_nothing(web: httpx.AsyncClient, mailbox: Mailbox, ends: str) -> None:
    await web.put("/users/ada", json=ADA)
    refused = await web.put("/users/ada", json=ADA | {"ends": ends})
    assert refused.status_code == 422 and "at most nine years ahead" in refused.text
    assert (await app.state.client.kv("users").get("ada")).json()["ends"] == "2030-01-31T09:00:00+00:00"


async def test_payment_while_a_mail_is_due_prevents_it(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    await web.put("/users/ada", json=ADA)
    await async_sandq_broker.advance_to("2030-01-28T09:00:00Z")
    (held,) = await app.state.client.leases("reminders", "mailer").take()  # too late to cancel it
    assert (await web.post("/users/ada/payment")).json() == {"cancelled": ["ended"]}
    await app.state.client.leases("reminders", "mailer").give_back([held])
    async with running_worker():
        await async_sandq_broker.advance("1d")
    assert mailbox.sent == []


async def test_failures_are_retried_later_each_time(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    await app.state.client.admin.update_topic("reminders", backoff={"jitter_percent": 0})  # so that times are exact
    mailbox.errors = ["mailbox full"] * 2
    await web.put("/users/ada", json=ADA)
    async with running_worker():
        await async_sandq_broker.advance_to("2030-01-28T09:00:00Z")
        soon, ended = (await web.get("/users/ada/why")).json()
        (group,) = soon["groups"]
        assert (group["state"], group["attempt"]) == ("waiting", 1) and "mailbox full" in group["error"]
        assert (ended["state"], ended["time"]) == ("delayed", "2030-01-31T09:00:00+00:00")
        await async_sandq_broker.advance("1d")
    assert mailbox.attempts == ["28 09:00", "28 09:01", "28 09:06"]
    assert len(mailbox.sent) == 1


async def test_reminder_that_fails_each_time_goes_to_the_dead_letter_topic(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    mailbox.errors = ["mailbox full"] * 5
    await web.put("/users/ada", json=ADA)
    async with running_worker():
        await async_sandq_broker.advance_to("2030-01-30T00:00:00Z")
    assert len(mailbox.attempts) == 5 and mailbox.sent == []
    (letter,) = await async_sandq_broker.messages("failed-reminders")
    assert letter.json() == {"user": "ada", "reminder": "soon", "ends": "2030-01-31T09:00:00+00:00"}
    assert "mailbox full" in letter.headers["sandq-dead-error"]


async def test_crash_and_restart_of_a_worker_lose_nothing(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, mailbox: Mailbox
) -> None:
    await web.put("/users/ada", json=ADA)
    await async_sandq_broker.advance_to("2030-01-28T09:00:00Z")
    (held,) = await app.state.client.leases("reminders", "mailer").take()  # a worker that crashes holds a lease
    async with running_worker():
        await async_sandq_broker.advance("29s")
        assert mailbox.sent == []
        await async_sandq_broker.advance("5m")
    assert len(mailbox.sent) == 1 and held.attempt == 1
    await async_sandq_broker.advance_to("2030-02-10T00:00:00Z")  # no worker runs when the second reminder is due
    async with running_worker():
        await async_sandq_broker.advance(0)
    assert len(mailbox.sent) == 2

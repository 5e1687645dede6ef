"""The application: it stores users, and schedules and cancels their reminders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import sandq
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, AwareDatetime, BaseModel
from sandq.errors import Conflict, InvalidRequest, NotFound, Retriable, TooLate

from reminders.broker import REMINDERS, connect, name_of

TIMEOUT = "5s"
"""A web request does not wait longer for the broker."""
FIELDS = ("state", "reason", "attempt", "error")
"""Fields of a group that support sees."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with connect() as app.state.client:
        yield


app = FastAPI(title="Reminders", lifespan=lifespan)


def in_range(ends: datetime) -> datetime:
    """Refuse a date that the broker would refuse after the user is stored: it stores at most ten years ahead."""
    if not datetime(2000, 1, 1, tzinfo=UTC) <= ends <= datetime.now(UTC) + timedelta(days=9 * 365):
        raise ValueError("must be after 1999, and at most nine years ahead")
    return ends


class Trial(BaseModel):
    email: str
    ends: Annotated[AwareDatetime, AfterValidator(in_range)]


@app.put("/users/{user}")
async def put_user(user: str, trial: Trial, request: Request) -> dict[str, str]:
    """Store a user and schedule the reminders. If the user exists, change the date and move the reminders.

    The request can be repeated: each reminder has a unique key, and the new one replaces the old one.
    """
    client: sandq.Client = request.app.state.client
    users = client.kv("users")
    entry = await users.get(user, timeout=TIMEOUT)
    if entry is not None and entry.json()["paid"]:
        raise HTTPException(409, f"{user} has paid and has no trial any more")
    ends = trial.ends.astimezone(UTC).isoformat()
    sent = {} if entry is None else entry.json()["sent"]
    stored = {"email": trial.email, "ends": ends, "paid": False, "sent": sent}
    await users.cas(user, json=stored, expected=None if entry is None else entry.version, timeout=TIMEOUT)
    await schedule(client, user)
    return {"user": user, "ends": ends}


async def schedule(client: sandq.Client, user: str) -> None:
    """Schedule the reminders of a user, or move them.

    If a different request changes the user meanwhile, do it again: so the reminders that are stored last are those of
    the stored user."""
    stored, version = await read_user(client, user)
    for reminder, before in REMINDERS.items():
        if stored["sent"].get(reminder) == stored["ends"]:
            continue
        await client.produce(
            "reminders",
            json={"user": user, "reminder": reminder, "ends": stored["ends"]},
            deliver_at=datetime.fromisoformat(stored["ends"]) - before,
            unique_key=name_of(user, reminder),
            on_conflict="replace",
            timeout=TIMEOUT,
        )
    if (await read_user(client, user))[1] != version:
        await schedule(client, user)


@app.post("/users/{user}/payment")
async def pay(user: str, request: Request) -> dict[str, list[str]]:
    """Mark a user as paid, and cancel the reminders. A cancelled reminder is never sent."""
    client: sandq.Client = request.app.state.client
    stored, version = await read_user(client, user)
    await client.kv("users").cas(user, json=stored | {"paid": True}, expected=version, timeout=TIMEOUT)
    cancelled = []
    for reminder in REMINDERS:
        with suppress(NotFound, TooLate):  # it is sent already, or is being sent
            await client.messages("reminders").cancel(unique_key=name_of(user, reminder), timeout=TIMEOUT)
            cancelled.append(reminder)
    return {"cancelled": cancelled}


@app.get("/users/{user}/why")
async def why(user: str, request: Request) -> list[dict[str, Any]]:
    """Explain to support the state of each reminder of a user, with its attempts so far."""
    client: sandq.Client = request.app.state.client
    await read_user(client, user)
    found = []
    for reminder in REMINDERS:
        with suppress(NotFound):  # it was cancelled, or sent and deleted
            message = await client.messages("reminders").why(unique_key=name_of(user, reminder), timeout=TIMEOUT)
            time = datetime.fromtimestamp(message["deliver_ms"] / 1000, UTC).isoformat()
            groups = [{key: group[key] for key in FIELDS} for group in message["groups"]]
            found.append({"reminder": reminder, "state": message["state"], "time": time, "groups": groups})
    return found


async def read_user(client: sandq.Client, user: str) -> tuple[dict[str, Any], str]:
    """Return what is stored about a user, and its version."""
    entry = await client.kv("users").get(user, timeout=TIMEOUT)
    if entry is None:
        raise HTTPException(404, f"there is no user {user}: create it with PUT /users/{user}")
    return entry.json(), entry.version


@app.exception_handler(InvalidRequest)
async def refuse(request: Request, error: InvalidRequest) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 422)


@app.exception_handler(Conflict)
async def conflict(request: Request, error: Conflict) -> JSONResponse:
    """Report that a worker sends the reminder at this moment, or that a different request changes the user."""
    return JSONResponse({"detail": f"{error}; repeat the request in a minute"}, 409)


@app.exception_handler(Retriable)
async def retry_later(request: Request, error: Retriable) -> JSONResponse:
    """Report a broker that does not answer in time. All requests can be repeated."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

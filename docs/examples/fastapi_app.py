"""A FastAPI app (under asyncio) that takes reminders and sends them when they are due.

One client lives as long as the app; `client.run` runs at the same time as the requests. With a broker on this machine:

    cd docs/examples && uvicorn fastapi_app:app
    curl -X POST 'http://127.0.0.1:8000/reminders?to=ada@example.org&text=tea&delay=5s'

BROKER=HOST:PORT names a different broker.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from fastapi import FastAPI, HTTPException

import sandq
from sandq.errors import InvalidRequest, NotFound, Retriable, TooLate, TopicExists

sent: deque[str] = deque(maxlen=100)


async def send_mail(message: sandq.Message) -> None:
    """Send one reminder that is due. Ten run at a time; on return the message is acked, after an exception retried."""
    sent.append(f"{message.headers['to']}: {message.value.decode()}")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with sandq.connect(os.environ.get("BROKER", "127.0.0.1:7170")) as client:
        with suppress(TopicExists):
            await client.admin.create_topic("reminders", max_attempts=5)
        app.state.client = client
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, "reminders", "mailer", send_mail)
            yield
            tasks.cancel_scope.cancel()  # mails in progress are finished first


app = FastAPI(lifespan=lifespan)


@app.post("/reminders", status_code=201)
async def schedule(to: str, text: str, delay: str) -> dict[str, str]:
    """Store a reminder. `delay` is "90s", "5m", "3d"; docs/client.md has all formats of times.

    The name makes it safe to send the request again after a 503: the same reminder is stored once.
    """
    client: sandq.Client = app.state.client
    name = hashlib.sha256("\n".join((to, text, delay)).encode()).hexdigest()
    try:
        reminder = await client.produce(
            "reminders", text, headers={"to": to}, delay=delay, unique_key=name, on_conflict="ignore", timeout="2s"
        )
    except InvalidRequest as error:
        raise HTTPException(422, str(error)) from None
    except Retriable as error:  # TimedOut, among others: users of a browser do not wait longer
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
    return {"id": reminder}


@app.delete("/reminders/{reminder}")
async def cancel(reminder: str) -> dict[str, str]:
    """Cancel a reminder. The answer is definite: it will never be sent, or it is too late."""
    client: sandq.Client = app.state.client
    try:
        return {"cancelled": await client.messages("reminders").cancel(reminder, timeout="2s")}
    except TooLate as error:
        raise HTTPException(409, str(error)) from None
    except Retriable as error:  # it may be cancelled all the same: a repetition does no harm
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
    except (NotFound, InvalidRequest) as error:
        raise HTTPException(404, str(error)) from None


@app.get("/sent")
async def list_sent() -> list[str]:
    return list(sent)

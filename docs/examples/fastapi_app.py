"""A FastAPI app (under asyncio) that takes reminders and sends them when they are due.

One client lives as long as the app; `client.run` works beside the requests. With a broker on this machine:

    cd docs/examples && uvicorn fastapi_app:app
    curl -X POST 'http://127.0.0.1:8000/reminders?to=ada@example.org&text=tea&delay=5s'

BROKER=HOST:PORT names another broker.
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
    """Called for each reminder once it is due: ten at a time, acked on return. What raises is tried again."""
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
            tasks.cancel_scope.cancel()  # mails under way are finished first


app = FastAPI(lifespan=lifespan)


@app.post("/reminders", status_code=201)
async def schedule(to: str, text: str, delay: str) -> dict[str, str]:
    """Stored once this answers. `delay` is "90s", "5m", "3d"; how else a time may be written: docs/client.md. The name
    makes it safe to ask again after a 503: the same reminder is stored once."""
    client: sandq.Client = app.state.client
    name = hashlib.sha256("\n".join((to, text, delay)).encode()).hexdigest()
    try:
        reminder = await client.produce(
            "reminders", text, headers={"to": to}, delay=delay, unique_key=name, on_conflict="ignore", timeout="2s"
        )
    except InvalidRequest as error:
        raise HTTPException(422, str(error)) from None
    except Retriable as error:  # TimedOut, among others: nobody who looks at a browser waits for longer
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
    return {"id": reminder}


@app.delete("/reminders/{reminder}")
async def cancel(reminder: str) -> dict[str, str]:
    """A definite answer: nobody will get it, or it is too late."""
    client: sandq.Client = app.state.client
    try:
        return {"cancelled": await client.messages("reminders").cancel(reminder, timeout="2s")}
    except TooLate as error:
        raise HTTPException(409, str(error)) from None
    except Retriable as error:  # it may be cancelled all the same: to ask again does no harm
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
    except (NotFound, InvalidRequest) as error:
        raise HTTPException(404, str(error)) from None


@app.get("/sent")
async def list_sent() -> list[str]:
    return list(sent)

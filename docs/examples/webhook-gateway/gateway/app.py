"""The application: it accepts events, pauses tenants, and replays dead webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import sandq
from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.responses import JSONResponse
from pydantic import AnyHttpUrl, BaseModel
from sandq.errors import Conflict, InvalidRequest, Retriable, UnknownGroup

from gateway.broker import connect, key_of

TIMEOUT = "5s"
"""A web request does not wait longer for the broker."""
NewTenant = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,100}$")]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with connect() as app.state.client:
        yield


app = FastAPI(title="Webhooks", lifespan=lifespan)


class Event(BaseModel):
    tenant: str
    url: AnyHttpUrl
    body: Any
    id: str | None = None
    """Name of the event. A repeated request with the same name stores nothing twice."""


@app.post("/events", status_code=202)
async def post_event(event: Event, request: Request) -> dict[str, str]:
    """Store an event. When this returns, the event is on disk and will be delivered."""
    client: sandq.Client = request.app.state.client
    await read_tenant(client, event.tenant)
    message_id = await client.produce(
        "webhooks",
        json=event.body,
        headers={"url": str(event.url)},
        key=key_of(event.tenant, str(event.url)),
        tenant=event.tenant,
        unique_key=event.id,
        on_conflict="ignore" if event.id else "reject",
        timeout=TIMEOUT,
    )
    return {"id": message_id}


@app.post("/tenants/{tenant}", status_code=201)
async def create_tenant(tenant: NewTenant, request: Request) -> dict[str, str]:
    """Create a tenant. Return the secret that its receivers verify requests with."""
    client: sandq.Client = request.app.state.client
    secret = sandq.new_push_secret()
    await client.kv("tenants").cas(tenant, json={"secret": secret, "paused": False}, expected=None, timeout=TIMEOUT)
    return {"secret": secret}


@app.post("/tenants/{tenant}/pause")
async def pause(tenant: str, request: Request) -> dict[str, bool]:
    return await set_paused(request.app.state.client, tenant, True)


@app.post("/tenants/{tenant}/resume")
async def resume(tenant: str, request: Request) -> dict[str, bool]:
    return await set_paused(request.app.state.client, tenant, False)


@app.get("/tenants/{tenant}/dead")
async def list_dead(tenant: str, request: Request) -> list[dict[str, Any]]:
    """List the first 100 webhooks of a tenant that were given up."""
    client: sandq.Client = request.app.state.client
    await read_tenant(client, tenant)
    letters = client.dead("webhooks", "senders").list(key_prefix=key_of(tenant), limit=100, timeout=TIMEOUT)
    try:
        return [
            {"id": letter.id, "url": letter.headers["url"], "attempts": letter.attempts, "error": letter.error}
            async for letter in letters
        ]
    except UnknownGroup:  # no sender was started yet
        return []


@app.post("/tenants/{tenant}/replay")
async def replay(tenant: str, request: Request, url: str = "") -> dict[str, int]:
    """Deliver the dead webhooks of a tenant again: all of them, or those whose URL begins with `url`."""
    client: sandq.Client = request.app.state.client
    await read_tenant(client, tenant)
    try:
        result = await client.dead("webhooks", "senders").redrive(key_prefix=key_of(tenant, url))
    except UnknownGroup:  # no sender was started yet
        return {"replayed": 0}
    return {"replayed": result.done}


async def set_paused(client: sandq.Client, tenant: str, paused: bool) -> dict[str, bool]:
    stored, version = await read_tenant(client, tenant)
    await client.kv("tenants").cas(tenant, json=stored | {"paused": paused}, expected=version, timeout=TIMEOUT)
    return {"paused": paused}


async def read_tenant(client: sandq.Client, tenant: str) -> tuple[dict[str, Any], str]:
    """Return what is stored about a tenant, and its version."""
    entry = await client.kv("tenants").get(tenant, timeout=TIMEOUT)
    if entry is None:
        raise HTTPException(404, f"there is no tenant {tenant}: create it with POST /tenants/{tenant}")
    return entry.json(), entry.version


@app.exception_handler(InvalidRequest)
async def refuse(request: Request, error: InvalidRequest) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 422)


@app.exception_handler(Conflict)
async def conflict(request: Request, error: Conflict) -> JSONResponse:
    """Report that the tenant exists, or that a different request changes it."""
    return JSONResponse({"detail": str(error)}, 409)


@app.exception_handler(Retriable)
async def retry_later(request: Request, error: Retriable) -> JSONResponse:
    """Report a broker that does not answer in time."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

"""A receiver to try the gateway with. It verifies requests with the secret in secret.json: `uvicorn receiver:app`."""

from __future__ import annotations

import json
from pathlib import Path

import sandq
from fastapi import FastAPI, HTTPException, Request
from sandq.errors import InvalidRequest

app = FastAPI()
secret = json.loads(Path("secret.json").read_text())["secret"]


@app.post("/hooks", status_code=204)
async def receive(request: Request) -> None:
    """Print a webhook. A real receiver stores `webhook-id`, and ignores a webhook that comes again."""
    body = await request.body()
    try:
        sandq.verify_push(dict(request.headers), body, secret)
    except InvalidRequest as error:
        raise HTTPException(401, str(error)) from None
    print("received", body.decode(), flush=True)


@app.post("/gone", status_code=410)
async def refuse() -> None:
    """Answer 410 like an endpoint that was removed."""

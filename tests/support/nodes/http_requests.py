"""Provide short methods for requests over HTTP, which also check the form of each reply."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import httpx

PROBLEM = "application/problem+json"
KEYS = "/topics/t/keys"


class Web:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def ask(self, method: str, path: str, body: Any = None, status: int | None = None, **options: Any) -> Any:
        """Send a request and return the JSON of the reply, or None if the reply has no body.

        Check that the status is `status` (None: any 2xx), and that an error has the form of RFC 9457."""
        if body is not None:
            options["json"] = body
        response = await self.client.request(method, path, **options)
        told = (method, path, response.status_code, response.text[:500])
        if status is None:
            assert response.is_success, told
        else:
            assert response.status_code == status, told
        assert response.headers["x-request-id"], told
        if not response.content:
            return None
        found = response.json()
        if response.status_code >= 400:
            assert response.headers["content-type"] == PROBLEM, told
            assert found["status"] == response.status_code and found["type"].endswith(found["code"]), told
            assert found["request_id"] == response.headers["x-request-id"], told
        else:
            assert response.headers["content-type"] == "application/json", told
        return found

    async def get(self, path: str, status: int | None = None, **params: Any) -> Any:
        return await self.ask("GET", path, None, status, params=params)

    async def post(self, path: str, body: Any = None, status: int | None = None) -> Any:
        return await self.ask("POST", path, body, status)

    async def patch(self, path: str, body: Any, status: int | None = None) -> Any:
        return await self.ask("PATCH", path, body, status)

    async def delete(self, path: str, status: int | None = None, **params: Any) -> Any:
        return await self.ask("DELETE", path, None, status, params=params)

    async def raw(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.client.request(method, path, **options)


def value_of(found: dict[str, Any]) -> bytes:
    """Return the value of a key in a reply, as bytes."""
    if "json" in found:
        return json.dumps(found["json"], ensure_ascii=False, separators=(",", ":")).encode()
    return found["text"].encode() if "text" in found else base64.b64decode(found["value"])


def path(key: str | bytes) -> str:
    """Return the URL path of a key. All special characters of the key are percent-encoded."""
    return f"{KEYS}/{quote(key, safe='')}"


async def put(web: Web, key: str, text: str, **more: Any) -> str:
    """Write a key and return its new version."""
    found = await web.ask("PUT", path(key), {"text": text, **more}, 200)
    version: str = found["version"]
    return version

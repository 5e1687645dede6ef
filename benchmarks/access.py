"""Measure the cost of authentication and authorization: in this process, without anything else."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio

from benchmarks.result import Goal, Measured, Row, Setting
from sandq.broker.access.authenticator import Authenticator
from sandq.metadata.records import IdentityRecord
from sandq.model.access import Access
from sandq.model.principals import TOKEN_BYTES, token_hash, token_text
from sandq.protocol.frames import Type
from sandq.server.handlers.rights import RULES

IDENTITIES = 1000
TOPICS = 100
GRANTS = tuple(f"writer:team{number}.*" for number in range(20))
US = "us"


def _measured(count: int, work: Callable[[int], None]) -> Measured:
    began, cpu_began = time.perf_counter(), time.process_time()
    work(count)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Measured(count, cpu_s * 1e6 / count, cpu_s * 1e6 / count, details={"per s": count / seconds})


def tokens(setting: Setting) -> Measured:
    """Authenticate a token, as for each connection."""
    texts = [token_text(secrets.token_bytes(TOKEN_BYTES)) for _ in range(IDENTITIES)]
    records = [
        IdentityRecord(f"token:t{number}", GRANTS, token_hash(text), 0, None, {}, "")
        for number, text in enumerate(texts)
    ]
    view = SimpleNamespace(identities={record.principal: record for record in records}, roles={})
    catalog: Any = SimpleNamespace(known_view=view, is_alone=True)
    authenticator = Authenticator("require", catalog, lambda: 0)

    async def identify(count: int) -> None:
        for number in range(count):
            await authenticator.identify(texts[number % IDENTITIES], None)

    def work(count: int) -> None:
        trio.run(identify, count)

    work(IDENTITIES)  # authenticate each identity once before the measurement
    return _measured(setting.count(200_000, 2000), work)


def rights(setting: Setting) -> Measured:
    """Check whether a request is allowed, as for each request."""
    access = Access.of("token:app", GRANTS, {})
    frames = [[Type.PRODUCE, 1, f"team{number % 20}.topic{number}", 0, 0, 0, 0, 0, b""] for number in range(TOPICS)]
    check = RULES[Type.PRODUCE].check
    context: Any = None

    def work(count: int) -> None:
        for number in range(count):
            check(context, access, frames[number % TOPICS])

    work(TOPICS)
    return _measured(setting.count(1_000_000, 10_000), work)


ROWS = (
    Row(
        "access_token",
        "access",
        f"one of {IDENTITIES:,} tokens",
        tokens,
        US,
        Goal(20, US, at_least=False),
        driver="none",
    ),
    Row(
        "access_rights",
        "access",
        f"the rights of a request, {len(GRANTS)} grants, {TOPICS} topics",
        rights,
        US,
        Goal(1, US, at_least=False),
        driver="none",
    ),
)

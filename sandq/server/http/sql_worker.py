"""A process that answers SQL statements for HTTP, one at a time: `python -m sandq.server.http.sql_worker`.

HTTP starts it (`sql_processes`), sends a JSON object in a line of its own for each statement and reads one answer. The
end of the input is the end of HTTP: the process then ends at once. A statement asks the cluster by the caller's own
token, so the nodes judge it. A caller without a token (it has shown a certificate to HTTP) is asked for by the
gateway's proof; then only `CallerView` judges.

    http    -> {"begin": {...}}      first, and once: see `begin_of` in `sql_processes`
            -> {"statement": text, "database": text, "full_scan": bool, "limit": count, "seconds": number,
                "token": text or null, "caller": null or {"principal": text, "grants": [text], "address": text,
                "gateway_secret": digits}}
    process -> {"body": size}        an answer of `size` bytes of JSON follows
            -> {"error": [code, message, retriable, details]}
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandq.model.errors import Forbidden, InvalidRequest, SandqError, TimedOut, to_wire

if TYPE_CHECKING:
    from sandq.client import Client
    from sandq.client.tls import ClientTls
    from sandq.model.access import Access
    from sandq.sql import Budget

CLIENT_NAME: Final = "sandq-http-sql"
REQUEST_S: Final = 10.0
"""Time for a node to answer one request."""
IDLE_S: Final = 120.0
"""Time without a statement after which the process ends."""
LIFE_S: Final = 3600.0
"""Time after which the process ends behind a statement: the next one reads certificates as they are then."""
ANSWER_BYTES: Final = 8 << 20
"""Bytes of an answer."""
SPARE_BYTES: Final = 64 << 20
"""Memory beside what one statement may take, of what the process has once its modules are loaded."""
EXIT_HTTP_GONE: Final = 3


def main() -> None:
    """Answer statements until the input ends, or none comes for `IDLE_S`."""
    # A terminal tells a whole group of processes; HTTP, which is told as well, says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints must not stand among the answers
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=partial(_read, lines), name="http", daemon=True).start()
    begin = json.loads(lines.get())["begin"]

    # They take their time to load.
    import anyio

    from sandq.sql import Budget
    from sandq.sql.duck import Duck

    budget = Budget(**begin["budget"])
    Duck(budget).close()
    bound_memory(budget)
    ends_s, most_bytes = time.monotonic() + LIFE_S, _data_bytes() + SPARE_BYTES
    with anyio.from_thread.start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        tls = _nodes_tls(begin["tls"])
        while True:
            try:
                said = json.loads(lines.get(timeout=IDLE_S))
            except queue.Empty:
                return
            output.write(portal.call(_answered, said, begin["servers"], tls, budget))
            output.flush()
            # What a large statement leaves behind goes with the process.
            if time.monotonic() > ends_s or _data_bytes() > most_bytes:
                return


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    """Read in a thread, so that the end of the input is noticed whatever runs."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(EXIT_HTTP_GONE)


def bound_memory(budget: Budget) -> None:
    """Bound the memory of this process by what it has now and what one statement may take.

    DuckDB does not count what functions make of their arguments; this bound does. An allocation beyond it fails, and
    the statement with it.
    """
    # Rows as they are read, the same as DuckDB takes them, its result, and the answer made of it.
    most = _data_bytes() + SPARE_BYTES + 3 * budget.scan_bytes + budget.result_bytes + budget.memory_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int:
    """Return what counts for RLIMIT_DATA now."""
    with Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 1 << 30


def _nodes_tls(said: Mapping[str, Any] | None) -> ClientTls | None:
    if said is None:
        return None
    if "section" not in said:
        from sandq.client.tls import ClientTls

        return ClientTls(ca=Path(said["ca"]))
    from sandq.model.config_tls import TlsSection
    from sandq.server.http.nodes_tls import nodes_tls
    from sandq.tls.certificates import Certificates

    # Changes of the files are not followed: the process ends before that matters (`LIFE_S`).
    certificates = Certificates(TlsSection(**said["section"]))
    return nodes_tls(certificates, said["own_hosts"], said["own_names"])


async def _answered(said: Mapping[str, Any], servers: list[str], tls: ClientTls | None, budget: Budget) -> bytes:
    """Return the answer to a statement as it is written."""
    try:
        body = await _answer(said, servers, tls, budget)
        return json.dumps({"body": len(body)}).encode() + b"\n" + body
    except BaseExceptionGroup as group:
        failure = _first(group)
    except Exception as error:
        failure = error
    if isinstance(failure, MemoryError):
        failure = InvalidRequest("the statement needs more memory than it may take: let fewer rows come to it")
    if not isinstance(failure, SandqError):
        import traceback

        traceback.print_exception(failure)
        failure = SandqError("a fault of sandq; the log of HTTP's process has it")
    return json.dumps({"error": to_wire(failure)}, default=str).encode() + b"\n"


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


async def _answer(said: Mapping[str, Any], servers: list[str], tls: ClientTls | None, budget: Budget) -> bytes:
    import dataclasses

    import anyio

    from sandq.sql import Ducks, Session, SqlError
    from sandq.sql.errors import ACCESS_DENIED, TABLE_FORBIDDEN
    from sandq.sql.errors import TIMED_OUT as SQL_TIMED_OUT
    from sandq.sql.scan import ALLOW

    own = dataclasses.replace(budget, seconds=min(budget.seconds, said["seconds"]), queries=1)
    ducks = Ducks(own)
    try:
        with anyio.fail_after(own.seconds):
            async with _connected(said, servers, tls) as (client, access):
                ask_access = None if access is None else partial(_known, access)
                session = Session(client, ducks, own, database=said["database"], ask_access=ask_access)
                session.variables.set(ALLOW, int(said["full_scan"]))
                answer = await session.run(said["statement"])
    except TimeoutError:
        raise TimedOut(f"the statement has not ended within {own.seconds:g} s") from None
    except SqlError as error:
        if error.number in (ACCESS_DENIED, TABLE_FORBIDDEN):
            raise Forbidden(error.message) from None
        if error.number == SQL_TIMED_OUT:
            raise TimedOut(error.message) from None
        raise InvalidRequest(error.message.replace(f"SET {ALLOW} = 1", "say full_scan")) from None
    finally:
        ducks.close()
    if answer.kill is not None:
        raise InvalidRequest("KILL is for MySQL's port: by HTTP a statement ends when its client goes")
    from sandq.server.http.sql_json import as_json

    return as_json(answer.table, said["limit"], ANSWER_BYTES)


async def _known(access: Access) -> Access:
    return access


@asynccontextmanager
async def _connected(
    said: Mapping[str, Any], servers: list[str], tls: ClientTls | None
) -> AsyncIterator[tuple[Client, Access | None]]:
    """A client that asks as the caller, and what the caller may do if no node is to judge it."""
    from sandq.client import connect_with, on_behalf_of
    from sandq.client.options import Options
    from sandq.model.access import Access

    caller = said["caller"]
    options = Options(
        connect_timeout_s=REQUEST_S,
        timeout_s=REQUEST_S,
        tls=tls,
        token=said["token"],
        gateway_secret=None if caller is None else partial(bytes.fromhex, caller["gateway_secret"]),
        # HTTP sends tokens by the same ways (IDENTIFY).
        insecure=True,
        waits_for_quota=False,
    )
    if caller is None:
        async with connect_with(options, tuple(servers), CLIENT_NAME) as client:
            yield client, None
        return
    with on_behalf_of(caller["address"], caller["principal"]):
        async with connect_with(options, tuple(servers), CLIENT_NAME) as client:
            yield client, Access.of(caller["principal"], caller["grants"], {})


if __name__ == "__main__":
    main()

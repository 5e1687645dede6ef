"""Run SQL statements for HTTP in a process, one at a time: `python -m sandq.server.http.sql_worker`.

The HTTP server starts the process (`sql_processes`), sends a JSON object on one line for each statement, and reads one
answer. If the input ends, the server has ended, and the process ends at once. A statement uses the cluster with the
caller's own token, so nodes check its requests. For a caller without a token (one with a certificate), the process
proves to be a gateway; then only `CallerView` checks the rights.

    http    -> {"begin": {...}}      first, and once: see `begin_of` in `sql_processes`
            -> {"statement": text, "database": text, "full_scan": bool, "limit": count, "seconds": number,
                "token": text or null, "caller": null or {"principal": text, "grants": [text], "address": text,
                "gateway_secret": digits}}
    process -> {"body": size}        a result of `size` bytes of JSON follows
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
"""Time for a node to answer one request, in seconds."""
IDLE_S: Final = 120.0
"""Time without a statement after which the process ends, in seconds."""
LIFE_S: Final = 3600.0
"""Age at which the process ends after a statement, in seconds. The next process loads certificates again."""
RESULT_BYTES: Final = 8 << 20
"""Maximum size of a result, in bytes."""
SPARE_BYTES: Final = 64 << 20
"""Memory that the process may have in addition to the limits of one statement, in bytes."""
EXIT_HTTP_GONE: Final = 3


def main() -> None:
    """Run statements until the input ends, or none comes for `IDLE_S`."""
    # A terminal signals the whole process group. The HTTP server gets the signal, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a module prints must not mix with the answers
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=partial(_read, lines), name="http", daemon=True).start()
    begin = json.loads(lines.get())["begin"]

    # Import these after the input is read: loading takes a while.
    import anyio

    from sandq.sql import Budget
    from sandq.sql.duck import Duck

    budget = Budget(**begin["budget"])
    Duck(budget).close()
    limit_memory(budget)
    ends_s, most_bytes = time.monotonic() + LIFE_S, _data_bytes() + SPARE_BYTES
    with anyio.from_thread.start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        tls = _nodes_tls(begin["tls"])
        while True:
            try:
                request = json.loads(lines.get(timeout=IDLE_S))
            except queue.Empty:
                return
            output.write(portal.call(_answered, request, begin["servers"], tls, budget))
            output.flush()
            # A large statement may leave memory behind: end the process to release it.
            if time.monotonic() > ends_s or _data_bytes() > most_bytes:
                return


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    """Read lines in a thread, so that the end of the input is noticed while a statement runs."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(EXIT_HTTP_GONE)


def limit_memory(budget: Budget) -> None:
    """Limit the memory of this process to its present size plus the limits of one statement.

    DuckDB does not count memory that functions use for their results, so its own limit is not enough. An allocation
    beyond this limit fails, and the statement with it.
    """
    # The rows as they are read, their copy for DuckDB, the result, and the JSON made from the result.
    most = _data_bytes() + SPARE_BYTES + 3 * budget.scan_bytes + budget.result_bytes + budget.memory_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int:
    """Return the memory that counts for RLIMIT_DATA now, in bytes."""
    with Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 1 << 30


def _nodes_tls(request: Mapping[str, Any] | None) -> ClientTls | None:
    """Return the TLS settings for nodes: from a file of authorities, or from the section `tls`; None: no TLS."""
    if request is None:
        return None
    if "section" not in request:
        from sandq.client.tls import ClientTls

        return ClientTls(ca=Path(request["ca"]))
    from sandq.model.config_tls import TlsSection
    from sandq.server.http.nodes_tls import nodes_tls
    from sandq.tls.certificates import Certificates

    # The process ends before changed certificate files matter (`LIFE_S`).
    certificates = Certificates(TlsSection(**request["section"]))
    return nodes_tls(certificates, request["own_hosts"], request["own_names"])


async def _answered(request: Mapping[str, Any], servers: list[str], tls: ClientTls | None, budget: Budget) -> bytes:
    """Run a statement, and return the bytes of its answer."""
    try:
        body = await _execute(request, servers, tls, budget)
        return json.dumps({"body": len(body)}).encode() + b"\n" + body
    except BaseExceptionGroup as group:
        failure = _first(group)
    except Exception as error:
        failure = error
    if isinstance(failure, MemoryError):
        failure = InvalidRequest("the statement needs more memory than it may use: let it read fewer rows")
    if not isinstance(failure, SandqError):
        import traceback

        traceback.print_exception(failure)
        failure = SandqError("an internal error of sandq; the log of the HTTP process has it")
    return json.dumps({"error": to_wire(failure)}, default=str).encode() + b"\n"


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of a group of errors."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


async def _execute(request: Mapping[str, Any], servers: list[str], tls: ClientTls | None, budget: Budget) -> bytes:
    """Run a statement and return its result as JSON. Raise SandqError."""
    import dataclasses

    import anyio

    from sandq.sql import Ducks, Session, SqlError
    from sandq.sql.errors import ACCESS_DENIED, TABLE_FORBIDDEN
    from sandq.sql.errors import TIMED_OUT as SQL_TIMED_OUT
    from sandq.sql.scan import ALLOW

    own = dataclasses.replace(budget, seconds=min(budget.seconds, request["seconds"]), queries=1)
    ducks = Ducks(own)
    try:
        with anyio.fail_after(own.seconds):
            async with _connected(request, servers, tls) as (client, access):
                ask_access = None if access is None else partial(_return_access, access)
                session = Session(client, ducks, own, database=request["database"], ask_access=ask_access)
                session.variables.set(ALLOW, int(request["full_scan"]))
                result = await session.run(request["statement"])
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
    if result.kill is not None:
        raise InvalidRequest("KILL is only for the MySQL port: over HTTP, a statement ends when its client disconnects")
    from sandq.server.http.sql_json import as_json

    return as_json(result.table, request["limit"], RESULT_BYTES)


async def _return_access(access: Access) -> Access:
    """Return these rights, as a coroutine."""
    return access


@asynccontextmanager
async def _connected(
    request: Mapping[str, Any], servers: list[str], tls: ClientTls | None
) -> AsyncIterator[tuple[Client, Access | None]]:
    """Yield a client that acts as the caller, and the caller's rights if no node checks them."""
    from sandq.client import connect_with, on_behalf_of
    from sandq.client.options import Options
    from sandq.model.access import Access

    caller = request["caller"]
    options = Options(
        connect_timeout_s=REQUEST_S,
        timeout_s=REQUEST_S,
        tls=tls,
        token=request["token"],
        gateway_secret=None if caller is None else partial(bytes.fromhex, caller["gateway_secret"]),
        # The HTTP server sends tokens over the same connections (IDENTIFY).
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

"""The process of SQL that a node starts (ADR 43). It serves until its standard input ends, which means that the node
has ended.

The node writes one line of JSON to its standard input: {"servers": [...], "listeners": [descriptors], "sql": section,
"tls": section or null, "own_hosts": [...], "own_names": [...], "insecure": bool, "log_format": text, "log_level":
text}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel

END_S: Final = 3.0
"""Time in s for running statements to end after the node has ended."""


def main() -> None:
    """Serve. The exit code is 0 if the node has ended, or has closed this process's input."""
    # A terminal, or a stop of the process group, sends signals to the node as well. The node decides when this process
    # ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    options = json.loads(sys.stdin.buffer.readline())

    # Import these modules late, because they take long to load.

    from sandq.model.config_sql import SqlSection
    from sandq.model.config_tls import OFF, REQUIRE, TlsSection
    from sandq.model.logger import get_logger
    from sandq.server import logs
    from sandq.server.http.nodes_tls import nodes_tls
    from sandq.server.process_tuning import collect_rarely
    from sandq.tls.certificates import Certificates
    from sandq.tools.sql_gateway import connector, limit_memory, serve_sql

    logs.set_up(options["log_format"], options["log_level"], "sql")
    log = get_logger("sandq.sql")
    section = SqlSection.model_construct(**options["sql"])
    settings = None if options["tls"] is None else TlsSection.model_validate(options["tls"])
    certificates = None if settings is None else Certificates(settings)
    nodes = None if certificates is None else nodes_tls(certificates, options["own_hosts"], options["own_names"])
    server_certificates = None if settings is None or settings.sql == OFF else certificates
    sockets = [socket.socket(fileno=number) for number in options["listeners"]]

    ended = threading.Event()
    limit_memory(section)

    async def run() -> None:
        stop = anyio.Event()
        token = anyio.lowlevel.current_token()

        def until_the_node_ends() -> None:
            sys.stdin.buffer.read()
            with contextlib.suppress(RuntimeError):  # the event loop has ended already
                anyio.from_thread.run_sync(stop.set, token=token)
            # A query that cannot be interrupted must not keep the port: the next process of SQL needs it.
            if not ended.wait(END_S):
                os._exit(1)

        threading.Thread(target=until_the_node_ends, daemon=True).start()

        def on_ready() -> None:
            collect_rarely()
            log.info("ready", sql=[str(one.getsockname()) for one in sockets])

        async with anyio.create_task_group() as tasks:
            if certificates is not None:
                tasks.start_soon(certificates.follow)
            await serve_sql(
                sockets,
                connector(options["servers"], nodes, insecure=options["insecure"]),
                section,
                None if server_certificates is None else lambda: server_certificates.loaded.sql,
                needs_tls=settings is not None and settings.sql == REQUIRE,
                on_ready=on_ready,
                stop=stop,
            )
            tasks.cancel_scope.cancel()

    arguments: dict[str, Any] = {"backend": "asyncio", "backend_options": {"use_uvloop": True}}
    anyio.run(run, **arguments)
    ended.set()
    logs.finish()


if __name__ == "__main__":
    main()

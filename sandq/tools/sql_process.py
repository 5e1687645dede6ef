"""SQL's process of a node, as the node starts it (ADR 43): told what to do by a line of JSON, it serves until its input
ends, which is the end of its node.

The line: {"servers": [...], "listeners": [descriptors], "sql": section, "tls": section or null, "own_hosts": [...],
"own_names": [...], "insecure": bool, "log_format": text, "log_level": text}.
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
"""For what runs to end, once its node has."""


def main() -> None:
    """Serve. Exit code 0: the node has ended, or said so."""
    # Told by a terminal, or by who stops a whole group of processes: the node, which is told as well, says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    said = json.loads(sys.stdin.buffer.readline())

    # They take their time to load.
    import structlog

    from sandq.model.config_sql import SqlSection
    from sandq.model.config_tls import OFF, REQUIRE, TlsSection
    from sandq.server import logs
    from sandq.server.http.nodes_tls import nodes_tls
    from sandq.server.process_tuning import collect_rarely
    from sandq.tls.certificates import Certificates
    from sandq.tools.sql_gateway import bound_memory, connecting, serve_sql

    logs.set_up(said["log_format"], said["log_level"], "sql")
    log = structlog.get_logger("sandq.sql")
    section = SqlSection.model_construct(**said["sql"])
    settings = None if said["tls"] is None else TlsSection.model_validate(said["tls"])
    certificates = None if settings is None else Certificates(settings)
    nodes = None if certificates is None else nodes_tls(certificates, said["own_hosts"], said["own_names"])
    speaks = None if settings is None or settings.sql == OFF else certificates
    sockets = [socket.socket(fileno=number) for number in said["listeners"]]

    ended = threading.Event()
    bound_memory(section)

    async def run() -> None:
        stop = anyio.Event()
        token = anyio.lowlevel.current_token()

        def until_the_node_ends() -> None:
            sys.stdin.buffer.read()
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                anyio.from_thread.run_sync(stop.set, token=token)
            # A query that cannot be interrupted must not keep the port, which the next node needs.
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
                connecting(said["servers"], nodes, insecure=said["insecure"]),
                section,
                None if speaks is None else lambda: speaks.loaded.sql,
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

"""`sandq docs`: serve the documentation site to a browser on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sandq.model.errors import SandqError, StartupError
from sandq.model.ports import LOCAL_HOST
from sandq.server.http import site

CONNECTIONS: Final = 64
"""Maximum number of connections; further ones get 503."""
GRACE_S: Final = 1


def serve(archive: Path, port: int, opens: bool, write: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `port`: 0 for any free port. Raise StartupError if the port cannot be used."""

    def page(request: Request) -> Response:
        """Respond in a thread, whose number Starlette limits."""
        return site.respond(request, archive, "/")

    async def failed(request: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", error.http_status if isinstance(error, SandqError) else 500)

    app = Starlette(routes=[Route("/{path:path}", page)], exception_handlers={SandqError: failed})
    try:
        listener = socket.create_server((LOCAL_HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StartupError(f"--port {port} cannot be used: {reason}; choose a different port, or 0") from None
    with listener, contextlib.suppress(KeyboardInterrupt):  # uvicorn stops, and then raises the signal again
        url = f"http://{LOCAL_HOST}:{listener.getsockname()[1]}/"
        write(f"{url}  (Ctrl-C ends it)")
        if opens:
            webbrowser.open(url)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            headers=[("x-content-type-options", "nosniff")],
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
        )
        uvicorn.Server(config).run([listener])

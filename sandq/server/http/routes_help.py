"""The documentation site, at /help/."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from sandq.server.http import site
from sandq.server.http.strict import Route

# Pages read the query of their own address in the browser, so a query is not refused here.
router = APIRouter(route_class=Route)


@router.get("/help", include_in_schema=False)
async def start() -> Response:
    return RedirectResponse("/help/")


@router.get("/help/{path:path}", include_in_schema=False)
def page(request: Request) -> Response:
    """Respond in a thread: reading and compressing a large file takes tens of milliseconds."""
    return site.respond(request, site.archive(), "/help/")

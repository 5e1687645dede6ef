"""SQL: one statement, and its rows."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from sandq.server.http import answers, bodies
from sandq.server.http.caller import access_of
from sandq.server.http.gateway import gateway_of, wait_apart
from sandq.server.http.strict import router_of

router = router_of("sql")


@router.post("/sql", operation_id="runSql", response_model=answers.SqlRows, summary="Ask in SQL")
async def run_sql(request: Request, body: bodies.SqlIn) -> Response:
    """Read-only: SELECT, SHOW, DESCRIBE, EXPLAIN over messages, groups, keys and the cluster. 409 where the
    configuration has it off. It ends when its time is over, or who asks goes."""
    sql, access = gateway_of(request).sql, access_of(request)
    found = await wait_apart(
        request,
        lambda: sql.run(access, body.statement, database=body.database, full_scan=body.full_scan, limit=body.limit),
    )
    return Response(found, media_type="application/json")

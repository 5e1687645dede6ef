"""Route of SQL statements."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from sandq.server.http import bodies, responses
from sandq.server.http.caller import address_of, caller_of
from sandq.server.http.gateway import gateway_of, run_waiting
from sandq.server.http.queries import Statement
from sandq.server.http.strict import router_of

router = router_of("sql")


@router.post("/sql", operation_id="runSql", response_model=responses.SqlRows, summary="Run an SQL statement")
async def run_sql(request: Request, body: bodies.SqlIn) -> Response:
    """Read-only: SELECT, SHOW, DESCRIBE and EXPLAIN over messages, groups, keys and the cluster. 409 if SQL is off in
    the configuration. The statement ends when its time is over, or the client disconnects."""
    sql, caller = gateway_of(request).sql, caller_of(request)
    statement = Statement(body.statement, body.database, body.full_scan, body.limit)
    found = await run_waiting(request, lambda: sql.run(caller, address_of(request), statement))
    return Response(found, media_type="application/json")

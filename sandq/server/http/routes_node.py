"""Routes of the cluster and its nodes."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from sandq.client.admin import partition_rows
from sandq.model.access import Right
from sandq.protocol.requests_audit import LINES_MOST
from sandq.server.http import bodies, responses
from sandq.server.http.caller import access_of
from sandq.server.http.cluster_watch import may_hear_of
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.problems import problem
from sandq.server.http.strict import router_of

router = router_of()
CLUSTER: list[str | Enum] = ["cluster"]
NODE: list[str | Enum] = ["node"]
NodeName = Annotated[str, Path(description="The node's id.")]
_UNWELL: dict[int | str, dict[str, Any]] = {503: {"description": "No; `detail` says why."}}
_DOCS = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>sandq HTTP API</title>
<link rel="stylesheet" href="docs/swagger-ui.css"><link rel="icon" href="docs/favicon-32x32.png"></head>
<body><div id="swagger-ui"></div><script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script>
</body></html>
"""
_START = 'SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true});\n'
_ASSETS = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"


@router.get(
    "/cluster",
    operation_id="getCluster",
    tags=CLUSTER,
    response_model=responses.Cluster,
    summary="Get the cluster as this node sees it",
)
async def cluster(request: Request) -> Found:
    """Counts only topics on which the caller has some right."""
    admin, access = gateway_of(request).client.admin, access_of(request)
    found = dict(await admin.cluster())
    if access is not None:
        found["topics"] = sum(access.sees(topic.name) for topic in await admin.list_topics())
        for name in ("different", "shut"):
            found[name] = [row for row in found.get(name, ()) if may_hear_of(access, row["topic"])]
    return found


@router.get(
    "/cluster/nodes", operation_id="listNodes", tags=CLUSTER, response_model=responses.Nodes, summary="Its nodes"
)
async def nodes(request: Request) -> Found:
    found = await gateway_of(request).client.admin.cluster()
    return {"nodes": found["nodes"], "others": found["others"]}


@router.post(
    "/cluster/init",
    operation_id="initCluster",
    tags=CLUSTER,
    response_model=responses.Founded,
    summary="Found the cluster with this node",
)
async def init(request: Request) -> Found:
    """Founds it now, with this node only; other waiting nodes join it. 409 unless this node waits to join a cluster,
    and knows of none."""
    return {"cluster_uuid": await gateway_of(request).client.admin.init_cluster()}


@router.post(
    "/cluster/nodes/{node}/drain",
    operation_id="drainNode",
    status_code=202,
    tags=CLUSTER,
    response_model=responses.Changing,
    summary="Drain a node: move its replicas away",
)
async def drain(request: Request, node: NodeName, body: bodies.DrainIn | None = None) -> Found:
    """Its replicas move to other nodes after the response, and it stays registered. Its `replicas` and `voter` in the
    list of nodes show the progress. `undo` makes it a regular node again. 400 if the other nodes are too few."""
    undo = body is not None and body.undo
    await gateway_of(request).client.admin.drain_node(node, undo=undo)
    return {"node": node, "standing": "in" if undo else "draining"}


@router.get(
    "/cluster/nodes/{node}/dump",
    operation_id="dumpNode",
    tags=CLUSTER,
    response_model=responses.Dump,
    summary="Dump the internal state of a node",
)
async def dump(request: Request, node: NodeName) -> Found:
    """Stacks of its threads and tasks, stalls of its event loop, queues, memory, configuration, and last log lines. The
    dump contains names, but no values, keys, headers or secrets."""
    return await gateway_of(request).client.admin.dump(node)


@router.get(
    "/cluster/nodes/{node}/log-level",
    operation_id="getLogLevel",
    tags=CLUSTER,
    response_model=responses.LogLevel,
    summary="Get a node's log level",
)
async def get_log_level(request: Request, node: NodeName) -> Found:
    return await gateway_of(request).client.admin.log_level(node=node)


@router.put(
    "/cluster/nodes/{node}/log-level",
    operation_id="setLogLevel",
    tags=CLUSTER,
    response_model=responses.LogLevel,
    summary="Change a node's log level",
)
async def set_log_level(request: Request, node: NodeName, body: bodies.LogLevelIn) -> Found:
    """The change lasts for some time, or until the node stops. Existing connections keep their level. The node's HTTP
    process keeps its level, too."""
    return await gateway_of(request).client.admin.log_level(body.level, for_=body.for_, node=node)


@router.delete(
    "/cluster/nodes/{node}",
    operation_id="removeNode",
    status_code=202,
    tags=CLUSTER,
    response_model=responses.Changing,
    summary="Remove a node that was drained, or has failed",
)
async def remove(request: Request, node: NodeName) -> Found:
    """The node is gone from the list once nothing depends on it. 409 while it is alive and holds something, or if a
    partition would lose its majority."""
    await gateway_of(request).client.admin.remove_node(node)
    return {"node": node, "standing": "removing"}


@router.get(
    "/audit",
    operation_id="listAudit",
    tags=CLUSTER,
    response_model=responses.Audit,
    summary="List audited requests and refusals",
)
async def audit(
    request: Request,
    last: Annotated[int, Query(ge=1, le=LINES_MOST, description="Maximum number of lines.")] = 100,
    after: Annotated[
        str | None, Query(description="The `position` of an earlier response: only lines written since.")
    ] = None,
    node: Annotated[str | None, Query(description="Only the log of this node.")] = None,
) -> Found:
    """The audit logs of all reachable nodes, oldest line first."""
    admin = gateway_of(request).client.admin
    return (await while_connected(request, lambda: admin.audit(last, after=after, node=node)))._asdict()


@router.get(
    "/slo",
    operation_id="getSlo",
    tags=CLUSTER,
    response_model=responses.Slo,
    summary="Compare lateness with the objective",
)
async def slo(
    request: Request, node: Annotated[str | None, Query(description="Only deliveries of this node.")] = None
) -> Found:
    """Covers all reachable nodes. Lists only topics on which the caller has some right."""
    admin, access = gateway_of(request).client.admin, access_of(request)
    found = (await while_connected(request, lambda: admin.slo(node=node)))._asdict()
    found["histogram"] = [{"up_to_ms": bound, "deliveries": count} for bound, count in found["histogram"]]
    found["topics"] = [row for row in found["topics"] if access is None or access.sees(row["topic"])]
    return found


@router.get(
    "/cluster/partitions",
    operation_id="listPartitions",
    tags=CLUSTER,
    response_model=responses.Partitions,
    summary="List the leader and the replicas of each partition",
)
async def partitions(
    request: Request,
    topic: Annotated[str | None, Query(description="Only partitions of this topic.")] = None,
    moving: Annotated[bool, Query(description="Only partitions that are being changed.")] = False,
) -> Found:
    """Lists only topics on which the caller has some right."""
    admin, access = gateway_of(request).client.admin, access_of(request)
    if topic is not None and access is not None and not access.sees(topic):
        raise access.refusal(Right.READ, topic)
    sees = None if access is None else access.sees
    rows = await while_connected(request, lambda: partition_rows(admin, topic, moving=moving, sees=sees))
    return {"partitions": rows}


@router.post(
    "/cluster/transfer",
    operation_id="transferPartition",
    status_code=204,
    tags=CLUSTER,
    summary="Transfer the leadership of a partition",
)
async def transfer(request: Request, body: bodies.TransferIn) -> None:
    """The new leader must hold a replica. 504 if it does not lead yet: it will, once it can be reached and has caught
    up."""
    await gateway_of(request).client.admin.transfer(body.topic, body.partition, body.node)


@router.post(
    "/cluster/rebuild",
    operation_id="rebuildReplica",
    status_code=202,
    tags=CLUSTER,
    summary="Rebuild a node's replica of a partition",
)
async def rebuild(request: Request, body: bodies.RebuildIn) -> None:
    """Use this for a replica that differs from the others. The replica has been dropped when the response comes, and is
    copied again afterwards. 409 unless all other replicas are present."""
    await gateway_of(request).client.admin.rebuild(body.topic, body.partition, body.node)


@router.post(
    "/cluster/finalize",
    operation_id="finalizeCluster",
    tags=CLUSTER,
    response_model=responses.Finalized,
    summary="Raise the feature level permanently",
)
async def finalize(request: Request, body: bodies.FinalizeIn | None = None) -> Found:
    """Use this in clusters with `cluster.finalize: manual`, once all nodes are upgraded. `dry_run` only returns the
    levels. 409 if no higher level is supported by all nodes."""
    dry_run = body is not None and body.dry_run
    before, after = await gateway_of(request).client.admin.finalize(dry_run=dry_run)
    return {"before": before, "after": after, "dry_run": dry_run}


@router.get(
    "/cluster/clock",
    operation_id="getClock",
    tags=CLUSTER,
    response_model=responses.Clock,
    summary="Get a node's guarded clock",
)
async def clock(request: Request) -> Found:
    return await gateway_of(request).client.admin.clock()


@router.post(
    "/cluster/clock/accept",
    operation_id="acceptClock",
    tags=CLUSTER,
    response_model=responses.Clock,
    summary="Trust the wall clock again",
)
async def accept_clock(request: Request) -> Found:
    """Use this after the wall clock has made a step that the node did not follow."""
    return await gateway_of(request).client.admin.clock(accept=True)


@router.post(
    "/cluster/clock/reset",
    operation_id="resetClock",
    tags=CLUSTER,
    response_model=responses.ClockReset,
    summary="Reset the clock of a partition",
)
async def reset_clock(request: Request, body: bodies.ClockResetIn) -> Found:
    """Sets the partition's time to the clock of its leader, after a wrong clock set it ahead. Until that is done, the
    partition neither stores nor delivers. Its `stats` show the progress (`clock_reset`), and how far ahead it was
    (`ahead_ms`)."""
    return await gateway_of(request).client.admin.reset_clock(body.topic, body.partition)


@router.get(
    "/livez",
    operation_id="getLiveness",
    tags=NODE,
    response_model=responses.Health,
    responses=_UNWELL,
    summary="Check that the process responds",
)
async def livez(request: Request) -> Any:
    """200 even if the disk has failed or the cluster has a problem: a restart would not fix these. If the node's
    process hangs, there is no response, or 503 if HTTP has a separate process."""
    node = gateway_of(request).node
    await node.catch_up()
    if (silence := node.silent()) is not None:
        return problem(request.state.request_id, 503, "UNAVAILABLE", silence, retriable=True)
    return {"status": "ok"}


@router.get(
    "/healthz",
    operation_id="getHealth",
    tags=NODE,
    response_model=responses.Health,
    responses=_UNWELL,
    summary="Check that the node can store messages",
)
async def healthz(request: Request) -> Any:
    """503 once the disk is full or has failed, because nothing may be written any more. 503 `UNAVAILABLE` while the
    disk hangs."""
    node = gateway_of(request).node
    await node.catch_up()
    if (failure := node.failure()) is not None:
        return problem(request.state.request_id, 503, "STORAGE_FAILED", failure)
    if (stalled := node.stalled()) is not None:
        return problem(request.state.request_id, 503, "UNAVAILABLE", stalled, retriable=True)
    return {"status": "ok"}


@router.get(
    "/readyz",
    operation_id="getReadiness",
    tags=NODE,
    response_model=responses.Health,
    responses=_UNWELL,
    summary="Check that the node is ready for requests",
)
async def readyz(request: Request) -> Any:
    gateway = gateway_of(request)
    await gateway.node.catch_up()
    reason = "the node is stopping" if gateway.ending.is_set() else gateway.node.ready()
    if reason is not None:
        return problem(request.state.request_id, 503, "UNAVAILABLE", reason, retriable=True)
    return {"status": "ok"}


@router.get(
    "/metrics",
    operation_id="getMetrics",
    tags=NODE,
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    summary="Get the metrics for Prometheus",
)
async def metrics(request: Request) -> Response:
    body, content_type = await gateway_of(request).node.metrics(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


# Pages for people, which are not in the API description.


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return HTMLResponse(_DOCS, headers={"content-security-policy": _POLICY})


@router.get("/docs/start.js", include_in_schema=False)
async def start() -> Response:
    return Response(_START, media_type="text/javascript")


@router.get("/docs/{asset}", include_in_schema=False)
async def asset(request: Request, asset: str) -> Response:
    if asset not in _ASSETS:
        return problem(request.state.request_id, 404, "NO_ROUTE", "there is no such page")
    data = files(__package__).joinpath("static", asset).read_bytes()
    return Response(data, media_type=_ASSETS[asset], headers={"cache-control": "max-age=3600"})

"""The cluster and this node: what it is, how it is."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import HTMLResponse, Response

from sandq.client.admin import partition_rows
from sandq.model.access import Right
from sandq.protocol.requests_audit import LINES_MOST
from sandq.server.http import answers, bodies
from sandq.server.http.caller import access_of
from sandq.server.http.cluster_watch import may_hear_of
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.problems import problem
from sandq.server.http.strict import router_of

router = router_of()
CLUSTER: list[str | Enum] = ["cluster"]
NODE: list[str | Enum] = ["node"]
NodeName = Annotated[str, Path(description="The node's id.")]
_UNWELL: dict[int | str, dict[str, Any]] = {503: {"description": "It is not; `detail` says why."}}
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
    response_model=answers.Cluster,
    summary="The cluster as this node sees it",
)
async def cluster(request: Request) -> Found:
    """Of topics it tells those on which whoever asks has some right."""
    admin, access = gateway_of(request).client.admin, access_of(request)
    found = dict(await admin.cluster())
    if access is not None:
        found["topics"] = sum(access.sees(topic.name) for topic in await admin.list_topics())
        for name in ("different", "shut"):
            found[name] = [row for row in found.get(name, ()) if may_hear_of(access, row["topic"])]
    return found


@router.get("/cluster/nodes", operation_id="listNodes", tags=CLUSTER, response_model=answers.Nodes, summary="Its nodes")
async def nodes(request: Request) -> Found:
    found = await gateway_of(request).client.admin.cluster()
    return {"nodes": found["nodes"], "others": found["others"]}


@router.post(
    "/cluster/init",
    operation_id="initCluster",
    tags=CLUSTER,
    response_model=answers.Founded,
    summary="Found the cluster with this node",
)
async def init(request: Request) -> Found:
    """Alone, and now; the nodes that wait beside it join. 409 unless this node waits to be taken in by a cluster, and
    knows of none."""
    return {"cluster_uuid": await gateway_of(request).client.admin.init_cluster()}


@router.post(
    "/cluster/nodes/{node}/drain",
    operation_id="drainNode",
    status_code=202,
    tags=CLUSTER,
    response_model=answers.Changing,
    summary="Let a node hold nothing",
)
async def drain(request: Request, node: NodeName, body: bodies.DrainIn | None = None) -> Found:
    """Its replicas move to the others after the answer, and it stays registered: `replicas` and `voter` among the nodes
    show how far it is. `undo`: it takes part again. 400 when the others would be too few."""
    undo = body is not None and body.undo
    await gateway_of(request).client.admin.drain_node(node, undo=undo)
    return {"node": node, "standing": "in" if undo else "draining"}


@router.get(
    "/cluster/nodes/{node}/dump",
    operation_id="dumpNode",
    tags=CLUSTER,
    response_model=answers.Dump,
    summary="What a node does now",
)
async def dump(request: Request, node: NodeName) -> Found:
    """Stacks of its threads and tasks, stalls of its event loop, queues, memory; its configuration and its last log
    lines. There are names in it, but no values, keys, headers or secrets."""
    return await gateway_of(request).client.admin.dump(node)


@router.get(
    "/cluster/nodes/{node}/log-level",
    operation_id="getLogLevel",
    tags=CLUSTER,
    response_model=answers.LogLevel,
    summary="At which level a node logs",
)
async def get_log_level(request: Request, node: NodeName) -> Found:
    return await gateway_of(request).client.admin.log_level(node=node)


@router.put(
    "/cluster/nodes/{node}/log-level",
    operation_id="setLogLevel",
    tags=CLUSTER,
    response_model=answers.LogLevel,
    summary="Have a node log at another level",
)
async def set_log_level(request: Request, node: NodeName, body: bodies.LogLevelIn) -> Found:
    """For a while, or until it stops. Connections that began before keep the level they had; its HTTP process is
    another process, and is not asked."""
    return await gateway_of(request).client.admin.log_level(body.level, for_=body.for_, node=node)


@router.delete(
    "/cluster/nodes/{node}",
    operation_id="removeNode",
    status_code=202,
    tags=CLUSTER,
    response_model=answers.Changing,
    summary="Forget a node that was drained, or has failed",
)
async def remove(request: Request, node: NodeName) -> Found:
    """It is not among the nodes any more once nothing depends on it. 409 while it is there and holds something, or when
    a partition would have no majority without it."""
    await gateway_of(request).client.admin.remove_node(node)
    return {"node": node, "standing": "removing"}


@router.get(
    "/audit",
    operation_id="listAudit",
    tags=CLUSTER,
    response_model=answers.Audit,
    summary="Who did what, and who was refused it",
)
async def audit(
    request: Request,
    last: Annotated[int, Query(ge=1, le=LINES_MOST, description="So many lines.")] = 100,
    after: Annotated[
        str | None, Query(description="The `position` of an earlier answer: what each node has written since.")
    ] = None,
    node: Annotated[str | None, Query(description="Only the log of this node.")] = None,
) -> Found:
    """The audit logs of all nodes that can be reached, the oldest line first."""
    admin = gateway_of(request).client.admin
    return (await while_connected(request, lambda: admin.audit(last, after=after, node=node)))._asdict()


@router.get(
    "/slo",
    operation_id="getSlo",
    tags=CLUSTER,
    response_model=answers.Slo,
    summary="How late messages are, beside what is promised",
)
async def slo(
    request: Request, node: Annotated[str | None, Query(description="Only what this node has delivered.")] = None
) -> Found:
    """Of all nodes that can be reached; of topics, those on which whoever asks has some right."""
    admin, access = gateway_of(request).client.admin, access_of(request)
    found = (await while_connected(request, lambda: admin.slo(node=node)))._asdict()
    found["histogram"] = [{"up_to_ms": bound, "deliveries": count} for bound, count in found["histogram"]]
    found["topics"] = [row for row in found["topics"] if access is None or access.sees(row["topic"])]
    return found


@router.get(
    "/cluster/partitions",
    operation_id="listPartitions",
    tags=CLUSTER,
    response_model=answers.Partitions,
    summary="Who leads and holds each partition",
)
async def partitions(
    request: Request,
    topic: Annotated[str | None, Query(description="Only those of this topic.")] = None,
    moving: Annotated[bool, Query(description="Only those of which something is under way.")] = False,
) -> Found:
    """Of topics on which whoever asks has some right."""
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
    summary="Let another node lead a partition",
)
async def transfer(request: Request, body: bodies.TransferIn) -> None:
    """One of those that hold it. 504 when it does not lead it yet: it will, once it can be reached and has caught
    up."""
    await gateway_of(request).client.admin.transfer(body.topic, body.partition, body.node)


@router.post(
    "/cluster/rebuild",
    operation_id="rebuildReplica",
    status_code=202,
    tags=CLUSTER,
    summary="Make a node's replica of a partition anew",
)
async def rebuild(request: Request, body: bodies.RebuildIn) -> None:
    """For a replica that is not what the others are. It is dropped, and on its way back, when this is answered; 409
    when the other replicas are not all there."""
    await gateway_of(request).client.admin.rebuild(body.topic, body.partition, body.node)


@router.post(
    "/cluster/finalize",
    operation_id="finalizeCluster",
    tags=CLUSTER,
    response_model=answers.Finalized,
    summary="Come to the features of a new version, for good",
)
async def finalize(request: Request, body: bodies.FinalizeIn | None = None) -> Found:
    """For clusters of `cluster.finalize: manual`, once all nodes are upgraded. `dry_run`: only say which feature
    levels. 409 when there is none that all know and that is higher."""
    dry_run = body is not None and body.dry_run
    before, after = await gateway_of(request).client.admin.finalize(dry_run=dry_run)
    return {"before": before, "after": after, "dry_run": dry_run}


@router.get(
    "/cluster/clock",
    operation_id="getClock",
    tags=CLUSTER,
    response_model=answers.Clock,
    summary="A node's guarded clock",
)
async def clock(request: Request) -> Found:
    return await gateway_of(request).client.admin.clock()


@router.post(
    "/cluster/clock/accept",
    operation_id="acceptClock",
    tags=CLUSTER,
    response_model=answers.Clock,
    summary="Trust the wall clock again",
)
async def accept_clock(request: Request) -> Found:
    """After a step of the wall clock that the node did not follow."""
    return await gateway_of(request).client.admin.clock(accept=True)


@router.post(
    "/cluster/clock/reset",
    operation_id="resetClock",
    tags=CLUSTER,
    response_model=answers.ClockReset,
    summary="Set a partition back",
)
async def reset_clock(request: Request, body: bodies.ClockResetIn) -> Found:
    """To the clock of the node that leads it, after a wrong clock put its time ahead. It neither stores nor delivers
    until it is through; its `stats` tell how far it is (`clock_reset`), and how far ahead it was (`ahead_ms`)."""
    return await gateway_of(request).client.admin.reset_clock(body.topic, body.partition)


@router.get(
    "/livez",
    operation_id="getLiveness",
    tags=NODE,
    response_model=answers.Health,
    responses=_UNWELL,
    summary="Whether its process goes on",
)
async def livez(request: Request) -> Any:
    """Whatever is wrong with its disk or its cluster: to start it anew would mend none of that. It does not answer when
    its process hangs; where HTTP has a process of its own, that one answers 503."""
    if (silence := gateway_of(request).node.silent()) is not None:
        return problem(request.state.request_id, 503, "UNAVAILABLE", silence, retriable=True)
    return {"status": "ok"}


@router.get(
    "/healthz",
    operation_id="getHealth",
    tags=NODE,
    response_model=answers.Health,
    responses=_UNWELL,
    summary="Whether it is alive",
)
async def healthz(request: Request) -> Any:
    """503 once its disk is full or has failed: what must not be written any more is not. Likewise while its disk hangs:
    `UNAVAILABLE` then."""
    node = gateway_of(request).node
    if (failure := node.failure()) is not None:
        return problem(request.state.request_id, 503, "STORAGE_FAILED", failure)
    if (stalled := node.stalled()) is not None:
        return problem(request.state.request_id, 503, "UNAVAILABLE", stalled, retriable=True)
    return {"status": "ok"}


@router.get(
    "/readyz",
    operation_id="getReadiness",
    tags=NODE,
    response_model=answers.Health,
    responses=_UNWELL,
    summary="Whether it takes work",
)
async def readyz(request: Request) -> Any:
    gateway = gateway_of(request)
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
    summary="For Prometheus",
)
async def metrics(request: Request) -> Response:
    body, content_type = await gateway_of(request).node.metrics(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


# For people. No description of the API names these.


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

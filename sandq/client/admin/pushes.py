"""What the nodes tell of the groups that are pushed, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sandq.model.health import PUSH_STARTING, worst_push


def together(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each group: its setting, its `state` (the worst of any node), the last `error` (with `error_ms`), and
    `nodes`, a row each for those that push."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        push = found.setdefault(str(row.get("group")), {**row, "nodes": []})
        here = row.get("here")
        if isinstance(here, Mapping):
            push["nodes"].append({"node": row.get("node"), **here})
    return [_whole(push) for _, push in sorted(found.items())]


def _whole(push: dict[str, Any]) -> dict[str, Any]:
    nodes = sorted(push["nodes"], key=lambda node: str(node.get("node")))
    states = {node.get("state") for node in nodes}
    failed = [node for node in nodes if node.get("error") is not None]
    last: dict[str, Any] = max(failed, key=lambda node: node.get("error_ms") or 0, default={})
    settings = {name: value for name, value in push.items() if name not in ("node", "here", "nodes")}
    return {
        **settings,
        "state": worst_push(states) or PUSH_STARTING,
        "error": last.get("error"),
        "error_ms": last.get("error_ms"),
        "nodes": nodes,
    }

"""Model the order in which tenants are served, from the guarantees of `sandq.partition.ready.tenant_scheduler`.

The model shares no code with the scheduler. For each message, it compares all nodes of the tree of tenants, so it needs
no order of them."""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 1 << 20
"""Virtual time that one message costs a tenant with weight 1."""
OWN = ""
Path = tuple[str, ...]


class FairModel:
    """The schedule of one group.

    The path of a tenant ends with `OWN`, which separates its own messages from those of tenants whose names extend its
    name."""

    def __init__(self) -> None:
        self.weights: Mapping[str, int] = {}
        """Weights by pattern: a name, a prefix followed by `.*`, or `*`."""
        self._finish: dict[Path, int] = {}
        self._virtual: dict[Path, int] = {}

    def clear(self) -> None:
        """Forget all charges."""
        self._finish.clear()
        self._virtual.clear()

    def take(self, queues: Mapping[str, list[str]], count: int) -> list[str]:
        """Take up to `count` messages from the queues of these tenants, in the order of the schedule."""
        left = {(*tenant.split("."), OWN): list(queue) for tenant, queue in queues.items() if queue}
        self._forget(left)
        taken: list[str] = []
        while len(taken) < count and left:
            path = self._next_path(left)
            taken.append(left[path].pop(0))
            if not left[path]:
                del left[path]
            self._forget(left)
        if not left:
            self.clear()
        return taken

    def _next_path(self, left: Mapping[Path, list[str]]) -> Path:
        """Return the path to serve next, charged for one message."""
        node: Path = ()
        while not node or node[-1] != OWN:
            depth = len(node) + 1
            children = {path[:depth] for path in left if path[: depth - 1] == node}
            now = self._virtual.get(node, 0)
            start, child = min((max(self._finish.get(child, 0), now), child) for child in children)
            if len(children) > 1:
                self._virtual[node] = start
                self._finish[child] = start + max(SHARE // self._weight(child), 1)
            node = child
        return node

    def _weight(self, path: Path) -> int:
        if path[-1] == OWN:
            return 1
        patterns = [".".join(path), *(".".join((*path[:end], "*")) for end in range(len(path) - 1, -1, -1))]
        return next((self.weights[pattern] for pattern in patterns if pattern in self.weights), 1)

    def _forget(self, left: Mapping[Path, list[str]]) -> None:
        """Forget each node without messages that has received at most its share, with all nodes below it."""
        active = {path[:depth] for path in left for depth in range(len(path) + 1)}
        for node in sorted({*self._finish, *self._virtual}):
            parents = [node[:depth] for depth in range(1, len(node) + 1)]
            if any(one not in active and self._finish.get(one, 0) <= self._virtual.get(one[:-1], 0) for one in parents):
                self._finish.pop(node, None)
                self._virtual.pop(node, None)

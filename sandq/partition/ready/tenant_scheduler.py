"""Fair turns among tenants: start-time fair queueing over the tree of their names.

Each node of the tree schedules its children with messages, by virtual time (Goyal, Vin and Cheng, "Start-time Fair
Queueing", 1996). A turn starts at the child's *finish*, or at the node's *virtual* time if that is later. The child
with the earliest start comes first; if starts are equal, the first by name. Then the node's virtual time becomes that
start, and the child's finish becomes the start plus `SCALE / weight` per message. So children of equal weight alternate
(round robin), and a child of weight 3 has three turns per turn of a child of weight 1. A child that was idle starts at
the present virtual time: unused turns are not saved up. Between two turns of a child with messages, each other child of
the same weight has at most two turns.

A child without active siblings is not charged for its turns. An idle child whose finish is not ahead of the virtual
time is forgotten.

Decisions depend only on integers and names. PERSISTED: `SCALE` and the rules of charging.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from sandq.partition.base.stale_heaps import FEW, is_overgrown

SCALE: Final = 1 << 20
OWN: Final = ""
"""Name of the leaf for a tenant's own messages. Its siblings are the nodes of tenants whose names continue the tenant's
name."""

T = TypeVar("T", str, tuple[int, str])


class Times(NamedTuple):
    """The stored times of a node."""

    finish: int
    """End of the node's last turn, in the virtual time of its parent."""
    virtual: int
    """The node's own virtual time, which orders its children."""


class SortedQueue(Generic[T]):
    """A sorted list whose items are removed at the front, and mostly added at the end. Unlike a heap, both operations
    leave all other items in place."""

    __slots__ = ("items", "start")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.start = 0
        """Index of the first item. Items before it are removed."""

    def put(self, item: T) -> None:
        """Insert an item in sorted order."""
        insort(self.items, item, self.start)

    def drop(self, count: int = 1) -> None:
        """Remove the first `count` items."""
        self.start += count
        if self.start > FEW and 2 * self.start > len(self.items):
            del self.items[: self.start]
            self.start = 0

    def __len__(self) -> int:
        """Return the number of items, without removed ones."""
        return len(self.items) - self.start


class Node:
    """A tenant, or a common prefix of several tenants' names."""

    __slots__ = (
        "active",
        "ahead",
        "children",
        "due",
        "finish",
        "idle",
        "is_active",
        "name",
        "parent",
        "path",
        "tenant",
        "virtual",
    )

    def __init__(self, name: str, parent: Node | None) -> None:
        self.name = name
        self.parent = parent
        self.path: str = name if parent is None or parent.parent is None else f"{parent.path}.{name}"
        self.tenant: str | None = None
        """Tenant whose messages the node stands for. None if the node is not a leaf."""
        self.finish = self.virtual = 0
        self.is_active = False
        self.children: dict[str, Node] = {}
        self.active = 0
        """Number of active children."""
        # Outdated items are skipped when they come first.
        self.due: SortedQueue[str] = SortedQueue()
        """Names of active children whose turn may start at the current virtual time."""
        self.ahead: SortedQueue[tuple[int, str]] = SortedQueue()
        """(finish, name) of active children whose finish is ahead of the virtual time."""
        self.idle: list[tuple[int, str]] = []
        """Heap of (finish, name) of children without messages."""


class TenantScheduler:
    """The turns of one group in one partition."""

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        """`weight_of(path)` returns the weight, at least 1, of a node of the tree.

        `path`: the name of a tenant, or a prefix that several names share (`acme` for `acme.a` and `acme.b`).
        """
        self._weight_of = weight_of
        self._root = Node("", None)
        self._leaves: dict[str, Node] = {}
        """Leaves by tenant."""
        self._changed: dict[str, Node | None] = {}
        """Nodes whose times have changed, by path. None if the node was forgotten."""

    def load(self, path: str, times: Times) -> None:
        """Load the times of a node that `changes` yielded, before any node is active. Parents must come first."""
        node = self._root
        for name in _names(path):
            node = self._child(node, name)
        node.finish, node.virtual = times
        if node.parent is not None:
            _put_in(node, node.parent)

    def next(self) -> tuple[str, bool] | None:
        """Return (tenant whose turn it is, whether other tenants are active). None if no tenant is active."""
        node, is_shared = self._root, False
        if not node.is_active:
            return None
        while node.tenant is None:
            if len(node.children) == 1:
                (node,) = node.children.values()
            else:
                is_shared = is_shared or node.active > 1
                node = _first(node)
        return node.tenant, is_shared

    def serve(self, tenant: str, messages: int) -> None:
        """Charge an active tenant for a turn with `messages` messages."""
        node = self._leaves[tenant]
        while (parent := node.parent) is not None:
            if parent.active > 1:
                start = max(node.finish, parent.virtual)
                if start > parent.virtual:
                    parent.virtual = start
                    self._changed[parent.path] = parent
                node.finish = start + max(messages * SCALE // self._weight_of(node.path), 1)
                self._changed[node.path] = node
                _put_in(node, parent)
                if parent.idle:
                    self._forget_idle(parent)
            node = parent

    def set_active(self, tenant: str, is_active: bool) -> None:
        """Note whether a tenant has messages that may be taken."""
        leaf = self._leaves.get(tenant)
        if leaf is None:
            if not is_active:
                return
            leaf = self._make_leaf(tenant)
        node: Node | None = leaf
        while node is not None and node.is_active != is_active:
            parent = node.parent
            node.is_active = is_active
            if parent is None:
                break
            parent.active += 1 if is_active else -1
            _put_in(node, parent)
            if not is_active:
                self._forget_idle(parent)
                if parent.active:
                    break
            node = parent

    def forget_idle(self) -> None:
        """Forget all idle nodes whose finish is not ahead of the virtual time."""
        nodes = [self._root]
        for node in nodes:
            self._forget_idle(node)
            nodes += node.children.values()

    def rest(self) -> None:
        """Forget all nodes, because no tenant has messages: even held-up tenants have none."""
        root = self._root
        if root.virtual or root.path in self._changed:
            self._changed[root.path] = None
        for child in root.children.values():
            self._forget(child)
        self._root = Node("", None)

    def changes(self) -> Iterator[tuple[str, Times | None]]:
        """Yield (path, times) of each node whose times have changed since the last call. None: the node was
        forgotten."""
        changed, self._changed = self._changed, {}
        for path, node in changed.items():
            is_new = node is None or node.finish == node.virtual == 0
            yield path, None if node is None or is_new else Times(node.finish, node.virtual)

    # -- the tree -------------------------------------------------------------------------------------------------

    def _make_leaf(self, tenant: str) -> Node:
        """Create the leaf for a tenant, with all nodes above it, and return it."""
        node = self._root
        for name in [*_names(tenant), OWN]:
            node = self._child(node, name)
        node.tenant = tenant
        self._leaves[tenant] = node
        return node

    def _child(self, parent: Node, name: str) -> Node:
        """Return the child with this name. Create it if there is none."""
        node = parent.children.get(name)
        if node is None:
            node = parent.children[name] = Node(name, parent)
            _put_in(node, parent)
            if name == OWN and node.path.endswith("."):
                # This leaf is being loaded. It stands for the tenant whose name is the parent's path.
                node.tenant = parent.path
                self._leaves[parent.path] = node
        return node

    def _forget_idle(self, parent: Node) -> None:
        """Forget idle children whose finish is not ahead of the virtual time."""
        idle, children = parent.idle, parent.children
        while idle and idle[0][0] <= parent.virtual:
            finish, name = heappop(idle)
            node = children.get(name)
            if node is not None and not node.is_active and node.finish == finish:
                self._forget(children.pop(name))

    def _forget(self, node: Node) -> None:
        """Forget a node and all nodes below it. The caller removes the node from its parent."""
        if node.tenant is not None:
            del self._leaves[node.tenant]
        if node.finish or node.virtual or node.path in self._changed:
            self._changed[node.path] = None
        for child in node.children.values():
            self._forget(child)
        # Parents and children refer to each other. Only a garbage collection would free them, and it takes some ms.
        node.children.clear()
        node.parent = None


def _put_in(node: Node, parent: Node) -> None:
    """Insert a child into the list of its parent that matches the child's state."""
    if not node.is_active:
        heappush(parent.idle, (node.finish, node.name))
        if is_overgrown(len(parent.idle), len(parent.children)):
            parent.idle = [(one.finish, one.name) for one in parent.children.values() if not one.is_active]
            heapify(parent.idle)
        return
    if node.finish > parent.virtual:
        parent.ahead.put((node.finish, node.name))
    else:
        parent.due.put(node.name)
    if is_overgrown(len(parent.due) + len(parent.ahead), len(parent.children)):
        active = [one for one in parent.children.values() if one.is_active]
        parent.ahead.items = sorted([(one.finish, one.name) for one in active if one.finish > parent.virtual])
        parent.due.items = sorted([one.name for one in active if one.finish <= parent.virtual])
        parent.ahead.start = parent.due.start = 0


def _first(parent: Node) -> Node:
    """Return the child whose turn starts first. At least one child must be active."""
    due, ahead, children, virtual = parent.due, parent.ahead, parent.children, parent.virtual
    if ahead.start < len(ahead.items) and ahead.items[ahead.start][0] <= virtual:
        stop = bisect_right(ahead.items, virtual, ahead.start, key=_finish)
        names = [name for _, name in ahead.items[ahead.start : stop]]
        ahead.drop(len(names))
        if len(names) < FEW:
            for name in names:
                due.put(name)
        else:
            due.items, due.start = sorted(due.items[due.start :] + names), 0
    while due.start < len(due.items):
        node = children.get(due.items[due.start])
        if node is not None and node.is_active and node.finish <= virtual:
            return node
        due.drop()
    while True:
        finish, name = ahead.items[ahead.start]
        node = children.get(name)
        if node is not None and node.is_active and node.finish == finish:
            return node
        ahead.drop()


def _finish(item: tuple[int, str]) -> int:
    """Return the finish of an item of `Node.ahead`: its sort key."""
    return item[0]


def _names(path: str) -> list[str]:
    """Return the segments of a tenant's name or of a path."""
    return path.split(".") if path else []

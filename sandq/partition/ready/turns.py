"""Whose turn is next among tenants: start-time fair queueing over the tree of their names.

At each node of the tree those children take turns that have something, by virtual time (Goyal, Vin and Cheng,
"Start-time Fair Queueing", 1996): a turn starts at the child's *finish*, or at the node's *virtual* time if that is
later; the child that starts first goes first, of equal ones the first by name; the node's time comes to that start, and
the child's finish to `SCALE / weight` behind it for each message. So children of equal weight go round robin, one of
weight 3 has three turns for one, and one that had nothing for a while begins where the others are: what it did not use
is not owed to it. Between two turns of a child that has something, each other one of its weight has two at most.

A child that is alone is not charged for its turns. One that has nothing, and has had no more than its share, is
forgotten.

Integers and names alone decide. PERSISTED: `SCALE`, and what is charged when.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from sandq.partition.base.stale_heaps import FEW, is_overgrown

SCALE: Final = 1 << 20
OWN: Final = ""
"""What stands for a tenant's own messages beside those of tenants whose names go on from its own."""

T = TypeVar("T", str, tuple[int, str])


class Times(NamedTuple):
    """What has to be remembered of a node."""

    finish: int
    """When its last turn ends, in its parent's time."""
    virtual: int
    """Its own time: that of its children."""


class Line(Generic[T]):
    """A sorted list that is taken from at its front, and mostly put to at its end: both without moving the others, as
    a heap would do."""

    __slots__ = ("items", "start")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.start = 0
        """What is before it is gone."""

    def put(self, item: T) -> None:
        """Put one in where it belongs."""
        insort(self.items, item, self.start)

    def drop(self, count: int = 1) -> None:
        """Drop the first ones."""
        self.start += count
        if self.start > FEW and 2 * self.start > len(self.items):
            del self.items[: self.start]
            self.start = 0

    def __len__(self) -> int:
        return len(self.items) - self.start


class Node:
    """A tenant, or what the names of several begin with."""

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
        """Of a leaf: the tenant whose messages are here."""
        self.finish = self.virtual = 0
        self.is_active = False
        self.children: dict[str, Node] = {}
        self.active = 0
        """How many children are."""
        # What is not so any more is skipped when it comes first.
        self.due: Line[str] = Line()
        """Names of active children whose turn may start at once."""
        self.ahead: Line[tuple[int, str]] = Line()
        """(finish, name) of active children that have had more than their share."""
        self.idle: list[tuple[int, str]] = []
        """Heap of the same of children that have nothing."""


class Turns:
    """The turns of one group in one partition."""

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        """`weight_of(path)`: the weight of a tenant, or of what names begin with; 1 or more."""
        self._weight_of = weight_of
        self._root = Node("", None)
        self._leaves: dict[str, Node] = {}
        """By tenant."""
        self._changed: dict[str, Node | None] = {}
        """By path, the nodes whose times have changed; None: forgotten."""

    def load(self, path: str, times: Times) -> None:
        """Go on with the times of a node, as `changes` told them, before anything is active. Parents come first."""
        node = self._root
        for name in _names(path):
            node = self._child(node, name)
        node.finish, node.virtual = times
        if node.parent is not None:
            _put_in(node, node.parent)

    def next(self) -> tuple[str, bool] | None:
        """The tenant whose turn it is, and whether it has to share with others; None: nobody has anything."""
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
        """A tenant, which is active, has had its turn, with so many messages."""
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
        """A tenant has something that may be taken, or has not any more."""
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
        """Forget all that has nothing, and has had no more than its share."""
        nodes = [self._root]
        for node in nodes:
            self._forget_idle(node)
            nodes += node.children.values()

    def rest(self) -> None:
        """Forget everything: nobody has anything, whether it may be taken or not."""
        root = self._root
        if root.virtual or root.path in self._changed:
            self._changed[root.path] = None
        for child in root.children.values():
            self._forget(child)
        self._root = Node("", None)

    def changes(self) -> Iterator[tuple[str, Times | None]]:
        """Yield the paths of nodes whose times are others than they were at the last call; None: forgotten."""
        changed, self._changed = self._changed, {}
        for path, node in changed.items():
            is_new = node is None or node.finish == node.virtual == 0
            yield path, None if node is None or is_new else Times(node.finish, node.virtual)

    # -- the tree -------------------------------------------------------------------------------------------------

    def _make_leaf(self, tenant: str) -> Node:
        node = self._root
        for name in [*_names(tenant), OWN]:
            node = self._child(node, name)
        node.tenant = tenant
        self._leaves[tenant] = node
        return node

    def _child(self, parent: Node, name: str) -> Node:
        node = parent.children.get(name)
        if node is None:
            node = parent.children[name] = Node(name, parent)
            _put_in(node, parent)
            if name == OWN and node.path.endswith("."):
                # A leaf that is loaded: it stands for the tenant whose name its parent has.
                node.tenant = parent.path
                self._leaves[parent.path] = node
        return node

    def _forget_idle(self, parent: Node) -> None:
        """Forget children that have nothing, and have had no more than their share."""
        idle, children = parent.idle, parent.children
        while idle and idle[0][0] <= parent.virtual:
            finish, name = heappop(idle)
            node = children.get(name)
            if node is not None and not node.is_active and node.finish == finish:
                self._forget(children.pop(name))

    def _forget(self, node: Node) -> None:
        if node.tenant is not None:
            del self._leaves[node.tenant]
        if node.finish or node.virtual or node.path in self._changed:
            self._changed[node.path] = None
        for child in node.children.values():
            self._forget(child)


def _put_in(node: Node, parent: Node) -> None:
    """Put a child among those of its parent where it belongs by now."""
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
    """The child whose turn starts first; one of them is active."""
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
    return item[0]


def _names(path: str) -> list[str]:
    """What a tenant's name, or a path, consists of."""
    return path.split(".") if path else []

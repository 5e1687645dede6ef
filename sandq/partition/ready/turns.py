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

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

SCALE: Final = 1 << 20
OWN: Final = ""
"""What stands for a tenant's own messages beside those of tenants whose names go on from its own."""


class Times(NamedTuple):
    """What has to be remembered of a node."""

    finish: int
    """When its last turn ends, in its parent's time."""
    virtual: int
    """Its own time: that of its children."""


class Node:
    """A tenant, or what the names of several begin with."""

    __slots__ = (
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
        self.due: list[str] = []
        """Names of active children whose turn may start at once, in order."""
        self.ahead: list[tuple[int, str]] = []
        """(finish, name) of active children that have had more than their share, in order."""
        self.idle: list[tuple[int, str]] = []
        """The same of children that have nothing."""

    @property
    def is_contended(self) -> bool:
        """Whether more than one child has something."""
        return len(self.due) + len(self.ahead) > 1


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
        if node.parent is not None:
            self._take_out(node)
        node.finish, node.virtual = times
        if node.parent is not None:
            self._put_in(node)

    def next(self) -> tuple[str, bool] | None:
        """The tenant whose turn it is, and whether it has to share with others; None: nobody has anything."""
        node, is_shared = self._root, False
        if not node.is_active:
            return None
        while node.tenant is None:
            is_shared = is_shared or node.is_contended
            node = node.children[_least(node)]
        return node.tenant, is_shared

    def serve(self, tenant: str, messages: int) -> None:
        """A tenant, which is active, has had its turn, with so many messages."""
        node = self._leaves[tenant]
        while node.parent is not None:
            parent = node.parent
            if parent.is_contended:
                start = max(node.finish, parent.virtual)
                self._take_out(node)
                if start > parent.virtual:
                    parent.virtual = start
                    self._changed[parent.path] = parent
                node.finish = start + max(messages * SCALE // self._weight_of(node.path), 1)
                self._changed[node.path] = node
                self._put_in(node)
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
            if parent is not None:
                self._take_out(node)
            node.is_active = is_active
            if parent is None:
                break
            self._put_in(node)
            if not is_active:
                self._forget_idle(parent)
                if parent.due or parent.ahead:
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
            insort(parent.idle, (0, name))
            if name == OWN and node.path.endswith("."):
                # A leaf that is loaded: it stands for the tenant whose name its parent has.
                node.tenant = parent.path
                self._leaves[parent.path] = node
        return node

    def _put_in(self, node: Node) -> None:
        """Put a child among those of its parent where it belongs."""
        parent = node.parent
        assert parent is not None
        if not node.is_active:
            insort(parent.idle, (node.finish, node.name))
        elif node.finish <= parent.virtual:
            insort(parent.due, node.name)
        else:
            insort(parent.ahead, (node.finish, node.name))

    def _take_out(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        ordered = (node.finish, node.name)
        if not node.is_active:
            del parent.idle[bisect_left(parent.idle, ordered)]
            return
        at = bisect_left(parent.ahead, ordered)
        if at < len(parent.ahead) and parent.ahead[at] == ordered:
            del parent.ahead[at]
        else:
            del parent.due[bisect_left(parent.due, node.name)]

    def _forget_idle(self, parent: Node) -> None:
        """Forget children that have nothing, and have had no more than their share."""
        idle = parent.idle
        count = 0
        while count < len(idle) and idle[count][0] <= parent.virtual:
            self._forget(parent.children.pop(idle[count][1]))
            count += 1
        del idle[:count]

    def _forget(self, node: Node) -> None:
        if node.tenant is not None:
            del self._leaves[node.tenant]
        if node.finish or node.virtual or node.path in self._changed:
            self._changed[node.path] = None
        for child in node.children.values():
            self._forget(child)


def _least(node: Node) -> str:
    """The name of the child whose turn starts first; the node is active."""
    ahead, virtual = node.ahead, node.virtual
    count = 0
    while count < len(ahead) and ahead[count][0] <= virtual:
        insort(node.due, ahead[count][1])
        count += 1
    del ahead[:count]
    return node.due[0] if node.due else ahead[0][1]


def _names(path: str) -> list[str]:
    """What a tenant's name, or a path, consists of."""
    return path.split(".") if path else []

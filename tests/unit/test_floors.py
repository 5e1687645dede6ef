"""The floors hold: imports go down only, pure floors stay pure, modules stay small.

The checkers take module names and source text, so that they are tested on small made-up sources as well: a
check that cannot fail is worth nothing.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from tests.support.paths import ROOT

MAX_LINES = 800

# The floor of each package or module, the longest prefix counts.
FLOORS = {
    "sandq.model": 0,
    "sandq.protocol": 1,
    "sandq.partition": 1,
    "sandq.metadata": 1,
    "sandq.gossip": 1,
    "sandq.schedules": 1,
    "sandq.storage": 2,
    "sandq.tls": 2,
    "sandq.raft": 3,
    "sandq.membership": 4,
    "sandq.broker": 4,
    "sandq.server": 5,
    "sandq.server.http": 5,
    "sandq.push": 5,
    "sandq.node": 6,
    "sandq.tools": 6,
    "sandq.cli": 6,
    "sandq.__main__": 6,
}
PURE_FLOORS = ("sandq.model", "sandq.protocol", "sandq.partition", "sandq.metadata", "sandq.gossip", "sandq.schedules")

# Modules outside the floors, with the only modules that each may import. "sandq" is the top alone.
BESIDE = {
    "sandq": {"sandq.client", "sandq.embed", "sandq.errors", "sandq.sync"},
    "sandq.errors": {"sandq.model"},
    "sandq.sync": {"sandq.sync", "sandq.client", "sandq.embed", "sandq.model", "sandq.errors"},
    "sandq.client": {"sandq.client", "sandq.model", "sandq.protocol", "sandq.schedules"},
    "sandq.backup": {"sandq.backup", "sandq.client", "sandq.model", "sandq.errors"},
    "sandq.sql": {"sandq.sql", "sandq.client", "sandq.model", "sandq.protocol", "sandq.errors"},
    # This module runs the state machine of a node on the restoring machine. All other parts of backups work without it
    # (sandq-client).
    "sandq.backup.replay": {
        *("sandq.backup", "sandq.model", "sandq.partition", "sandq.storage"),
        "sandq.broker.replication.replica",
    },
    "sandq.spark": {
        *("sandq.spark", "sandq", "sandq.client", "sandq.sync", "sandq.errors"),
        *("sandq.model", "sandq.protocol"),
    },
    "pyspark_sandq": {"sandq.spark"},
    # The distribution sandq-workers needs the client only.
    "sandq_workers": {"sandq_workers", "sandq", "sandq.sync", "sandq.errors"},
    "sandctl": {
        *("sandctl", "sandq", "sandq.backup", "sandq.client", "sandq.embed"),
        *("sandq.model", "sandq.errors", "sandq.sql"),
    },
    "sandctl.pipeline": {"sandctl", "sandq", "sandq.client", "sandq.model", "sandq.errors", "sandq.spark"},
}
# The HTTP API is a client of the cluster (ADR 0009).
# So are the pushes of groups (ADR 37).
MAY_STAND_ON = {"sandq.server.http": ("sandq.client", "sandq.backup", "sandq.sql"), "sandq.push": ("sandq.client",)}
EVERYTHING = ("sandq.testing", "sandq.embed")

# Packages without circular imports between their rooms: all packages.
PACKAGES = [*sorted(f"sandq.{path.parent.name}" for path in (ROOT / "sandq").glob("*/__init__.py")), "sandctl"]

# The names that other packages may import from the client: those in `__all__` of these modules, and no others.
CLIENT = "sandq.client"
CLIENT_DOORS = {
    "sandq.client",
    *(f"sandq.client.{part}" for part in ("admin", "consumer", "kv", "producer", "transport")),
    *(f"sandq.client.{module}" for module in ("json_format", "options", "positions", "signals", "tls")),
    "sandq.client.backups",
    "sandq.client.schedules",
}
BEHIND_THE_DOORS = ("sandq.client", "sandq.embed", "sandq.sync", "sandq.testing")
PRIVATE_OF_CLIENTS = {"_batcher", "_cluster", "_inner", "_portal"}

IMPURE_MODULES = {
    *("time", "random", "secrets", "trio", "anyio", "asyncio", "socket", "ssl", "select", "selectors"),
    *("threading", "multiprocessing", "concurrent", "subprocess", "tempfile", "shutil"),
}
FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
CLOCK_CALLS = {"now", "utcnow", "today"}
# A file of the configuration; the zone data that is installed with sandq.
# A directory, to reach a socket in it by a short path.
MAY_READ = {
    "sandq.model.config": {"read_text"},
    "sandq.schedules.zones": {"read_bytes"},
    "sandq.model.unix_sockets": {"open"},
}
# `sandq` and `sandq.sync` load the embedded broker when it is used. Its modules may import them.
EMBEDDED = "sandq.embed"
# These libraries come with the extras sandq[spark], sandq[sql], sandq-client[otel] and those of sandq-workers. All
# other code runs without them.
EXTRA = {
    *("amqp", "celery", "django", "django_tasks", "dramatiq", "duckdb", "kombu", "opentelemetry", "pyarrow"),
    *("pyspark", "sqlglot", "taskiq"),
}
MAY_USE_EXTRA = (
    "sandq.client.tracing",
    "sandq.spark",
    "sandq.sql",
    "sandctl.pipeline",
    "pyspark_sandq",
    "sandq_workers",
)
PICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve"}


parsed: Final = functools.lru_cache(2000)(ast.parse)
"""Parses a source text. Several checks read the same modules."""


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def longest(module: str, table: dict[str, object]) -> str | None:
    """Return the longest key of the table that contains the module. "sandq" stands only for the top module."""
    found = [key for key in table if (module == key if key == "sandq" else within(module, key))]
    return max(found, key=len, default=None)


def _resolved(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def imports(module: str, source: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Return (line, dotted name) of every import at any place. `from a import b` gives a.b."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _resolved(node, module, is_package)
            for alias in node.names:
                yield node.lineno, base if alias.name == "*" else f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def _is_top(target: str) -> bool:
    """Whether the name is sandq or a name of its __init__, and not a module below it."""
    root, _, below = target.partition(".")
    if root != "sandq" or not below:
        return root == "sandq"
    known = any(within(f"sandq.{below}", key) for key in (*FLOORS, *BESIDE, *EVERYTHING) if key != "sandq")
    path = ROOT / "sandq" / below
    return not (known or "." in below or path.is_dir() or path.with_suffix(".py").is_file())


def _allowed(module: str, target: str) -> str | None:
    """Return the reason why this import of sandq or sandctl is wrong, or None."""
    if any(within(module, package) for package in EVERYTHING) or target == "sandq.__version__":
        return None
    own = longest(module, {**FLOORS, **BESIDE})
    if own is None:
        return "has no floor: add its package to the table of floors"
    if own in BESIDE:
        allowed = BESIDE[own]
        if _is_top(target):
            fits = "sandq" in allowed
        else:
            fits = any(package != "sandq" and within(target, package) for package in allowed)
        return None if fits else f"may import only {', '.join(sorted(allowed))}"
    if within(target, "sandctl") or (_is_top(target) and FLOORS[own] < 6):
        return "may not import what stands above it"
    other = longest(target, {**FLOORS, **BESIDE}) or ("sandq" if _is_top(target) else None)
    if other is None:
        return "imports a package without a floor: add it to the table of floors"
    if other in BESIDE:
        fits = FLOORS[own] == 6 or other in MAY_STAND_ON.get(own, ())
        return None if fits else "may not import what stands beside the floors"
    if FLOORS[other] > FLOORS[own]:
        return f"is on floor {FLOORS[own]} and imports floor {FLOORS[other]}"
    if FLOORS[own] == FLOORS[other] == 1 and own != other:
        return "is of floor 1, whose packages do not import each other"
    return None


def check_imports(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return imports that go up, and libraries that belong to a different package or to none."""
    wrong = []
    for line, target in imports(module, source, is_package):
        root = target.split(".")[0]
        why = _allowed(module, target) if root in ("sandq", "sandctl") else None
        if root == "pysyncobj" and not within(module, "sandq.raft"):
            why = "only sandq.raft may import pysyncobj"
        if root in EXTRA and not any(within(module, package) for package in MAY_USE_EXTRA):
            why = f"only {', '.join(MAY_USE_EXTRA)} may import {root}"
        if root in PICKLES:
            why = "pickle is nowhere allowed"
        if why is not None:
            wrong.append(f"{module}:{line}: {target}: {why}")
    return wrong


def exported_by(source: str) -> set[str]:
    """Return the names in a module's `__all__`."""
    for node in parsed(source).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


def check_client(module: str, source: str, is_package: bool = False, *, exports: dict[str, set[str]]) -> list[str]:
    """Return imports of names that the client does not export. `exports`: the exports of each entry module."""
    if any(within(module, package) for package in BEHIND_THE_DOORS):
        return []
    wrong = []
    for line, target in imports(module, source, is_package):
        door, _, name = target.rpartition(".")
        if within(target, CLIENT) and target not in exports and name not in exports.get(door, ()):
            wrong.append(f"{module}:{line}: {target}: is no part of what the client exports to others")
    return wrong


def check_private(module: str, source: str) -> list[str]:
    """Return uses of private parts of the client from outside."""
    if any(within(module, package) for package in BEHIND_THE_DOORS):
        return []
    return [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_OF_CLIENTS and ast.unparse(node.value) != "self"
    ]


def is_pure(module: str) -> bool:
    return any(within(module, floor) for floor in PURE_FLOORS)


def check_purity(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return uses of clocks, randomness, sockets, threads, event loops and files in a pure floor."""
    if not is_pure(module):
        return []
    wrong = []
    for line, target in imports(module, source, is_package):
        if target.split(".")[0] in IMPURE_MODULES:
            wrong.append(f"{module}:{line}: imports {target}")
    dates = {"datetime", "date"}
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "datetime":
            dates |= {alias.asname for alias in node.names if alias.asname and alias.name in ("datetime", "date")}
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Call):
            continue
        called, owner = _called(node.func)
        files = FILE_CALLS - MAY_READ.get(module, set())
        if called in files or (called in CLOCK_CALLS and owner in dates):
            wrong.append(f"{module}:{node.lineno}: calls {called}()")
    return wrong


def _called(func: ast.expr) -> tuple[str, str]:
    """Return the called name and the name before it: ("now", "datetime") for datetime.datetime.now."""
    if isinstance(func, ast.Name):
        return func.id, ""
    if not isinstance(func, ast.Attribute):
        return "", ""
    owner = func.value
    return func.attr, owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")


def check_size(module: str, source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{module}: {lines} lines, {MAX_LINES} are allowed"] if lines > MAX_LINES else []


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules in or between import cycles: the rest after all ends of chains are removed."""
    left = set(graph)
    while True:
        ends = {module for module in left if not graph[module] & left}
        ends |= left - {target for module in left for target in graph[module]}
        if not ends:
            return left
        left -= ends


def room_of(module: str, package: str) -> str:
    """Return the room of a package that a module is in: a direct sub-folder, or a module directly in the package."""
    below = module[len(package) + 1 :]
    return f"{package}.{below.partition('.')[0]}" if below else package


def circles_of_rooms(package: str, sources: Iterable[tuple[str, str, bool]]) -> list[str]:
    """Return circular imports between groups of modules in the package."""
    graph = graph_of(source for source in sources if within(source[0], package))
    rooms: dict[str, set[str]] = {room_of(module, package): set() for module in graph}
    for module, targets in graph.items():
        rooms[room_of(module, package)] |= {room_of(target, package) for target in targets}
    for room, targets in rooms.items():
        targets.discard(room)
    bad = in_circles(rooms)
    return [
        f"{module} imports {target}"
        for module, targets in sorted(graph.items())
        for target in sorted(targets)
        if len({room_of(module, package), room_of(target, package)} & bad) == 2
    ]


def graph_of(sources: Iterable[tuple[str, str, bool]]) -> dict[str, set[str]]:
    """Return module -> imported modules. Imports at any place count, also imports only for types, except those of the
    embedded broker."""
    known = {module: (source, is_package) for module, source, is_package in sources}
    graph: dict[str, set[str]] = {}
    for module, (source, is_package) in known.items():
        graph[module] = set()
        for _, target in imports(module, source, is_package):
            found = target if target in known else target.rpartition(".")[0]
            if found in known and found != module and not (found == EMBEDDED and not within(module, EMBEDDED)):
                graph[module].add(found)
    return graph


WORKERS = "integrations/workers/sandq_workers"


def modules(
    packages: Iterable[str] = ("sandq", "sandctl", "pyspark_sandq", WORKERS),
) -> Iterator[tuple[str, str, bool]]:
    """(dotted name, source, is a package) of every module of the project."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to((ROOT / package).parent if package == WORKERS else ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            yield ".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package


# ------------------------------------------------------------------------------------------------ the project


def test_imports_go_down_only() -> None:
    wrong = [line for module in modules() for line in check_imports(*module)]
    assert not wrong, "\n".join(wrong)


def test_pure_floors_are_pure() -> None:
    wrong = [line for module in modules() for line in check_purity(*module)]
    assert not wrong, "\n".join(wrong)


def test_modules_are_small() -> None:
    wrong = [line for module, source, _ in modules() for line in check_size(module, source)]
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_cycles() -> None:
    assert in_circles(graph_of(modules())) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_do_not_import_each_other_in_a_circle(package: str) -> None:
    wrong = circles_of_rooms(package, modules((package.replace(".", "/"),)))
    assert not wrong, "\n".join(wrong)


def test_only_exports_of_the_client_are_used() -> None:
    exports = {module: exported_by(source) for module, source, _ in modules() if module in CLIENT_DOORS}
    assert exports.keys() == CLIENT_DOORS and all(exports.values())
    wrong = []
    for module, source, is_package in modules(("sandq", "sandctl", "pyspark_sandq", WORKERS, "demo", "benchmarks")):
        wrong += check_client(module, source, is_package, exports=exports)
        wrong += check_private(module, source) if CLIENT in source or "sandq.sync" in source else []
    assert not wrong, "\n".join(wrong)


def test_modules_are_found() -> None:
    assert {"sandq", "sandq.model", "sandq.model.batch"} <= {module for module, _, _ in modules()}


# ----------------------------------------------------------------------------------------------- the checkers


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sandq.model.names", "from sandq.protocol import frames"),
        ("sandq.model.names", "import sandq.protocol.frames"),
        ("sandq.model.names", "from ..protocol import frames"),
        ("sandq.model.names", "from sandq import protocol"),
        ("sandq.model.names", "from sandq import connect"),
        ("sandq.model.names", "import sandq"),
        ("sandq.model.names", "def f():\n    from sandq.storage.wal import Wal"),
        ("sandq.model.names", "if TYPE_CHECKING:\n    from sandq.raft import Group"),
        ("sandq.model.names", "importlib.import_module('sandq.broker')"),
        ("sandq.protocol.frames", "from sandq.partition.state_machine import TimerPartition"),
        ("sandq.partition.state_machine", "from sandq.metadata import state"),
        ("sandq.partition.state_machine", "from sandq.gossip import swim"),
        ("sandq.schedules.recurrence", "from sandq.partition import view"),
        ("sandq.gossip.swim", "from sandq.membership import udp"),
        ("sandq.gossip.swim", "from sandq.membership.datagrams import Datagrams"),
        ("sandq.storage.wal", "from sandq.raft.group import Group"),
        ("sandq.raft.group", "from sandq.broker.replication.raft_group import Host"),
        ("sandq.broker.replication.raft_group", "from sandq.server import tcp"),
        ("sandq.broker.replication.raft_group", "from sandq.client import Client"),
        ("sandq.broker.replication.raft_group", "from sandq.errors import SandqError"),
        ("sandq.server.tcp", "from sandq.node import run"),
        ("sandq.server.tcp", "import sandctl.main"),
        ("sandq.server.tcp", "import sandq"),
        ("sandq.node", "import sandctl.main"),
        ("sandq.client.producer.producer", "from sandq.partition import timer"),
        ("sandq.client.producer.producer", "from sandq.storage import keys"),
        ("sandq.client.producer.producer", "from sandq import connect"),
        ("sandq.errors", "from sandq.client import Client"),
        ("sandctl.main", "from sandq.broker import host"),
        ("sandctl.main", "from sandq.protocol import frames"),
        ("sandctl.main", "from sandq.spark import source"),
        ("sandctl.main", "from sandq.novelty import thing"),
        ("sandq.novelty", "from sandq.model import names"),
        ("sandq.node", "from sandq.novelty import thing\nimport sandctl"),
        ("sandq.broker.replication.raft_group", "import pysyncobj"),
        ("sandctl.main", "def f():\n    from pysyncobj.node import Node"),
        ("sandq.client.consumer.message.fetch", "from sandq.spark import columns"),
        ("sandq.sync", "from sandq.spark import reading"),
        ("sandq.spark.source.reading", "from sandq.partition import log"),
        ("sandq.client.consumer.message.fetch", "import pyarrow as pa"),
        ("sandq.broker.replication.raft_group", "from pyspark.sql import SparkSession"),
        ("sandq.raft.group", "import pickle"),
        ("sandq.testing.embedded", "from pickle import loads"),
    ],
)
def test_an_import_that_is_wrong_is_found(module: str, source: str) -> None:
    assert check_imports(module, source)


@pytest.mark.parametrize(
    ("source", "is_right"),
    [
        ("from sandq.client import connect", True),
        ("import sandq.client", True),
        ("from sandq.client.producer import Batch", True),
        ("from sandq.client import producer", True),
        ("from sandq.client import Inner", False),
        ("from sandq.client.producer import Inner", False),
        ("from sandq.client.producer.batches import Batch", False),
        ("import sandq.client.producer.batches", False),
        ("def f():\n    from sandq.client.client import connect", False),
    ],
)
def test_name_that_the_client_does_not_export_is_found(source: str, is_right: bool) -> None:
    exports = {"sandq.client": {"connect"}, "sandq.client.producer": {"Batch"}}
    assert (check_client("sandctl.main", source, exports=exports) == []) is is_right
    assert check_client("sandq.sync.client", source, exports=exports) == []


def test_private_name_of_the_client_is_found() -> None:
    assert check_private("sandq.spark.sink.sender", "client._cluster")
    assert check_private("sandq.spark.sink.sender", "self._client._inner.produce()")
    assert check_private("sandq.spark.sink.sender", "self._cluster") == []
    assert exported_by('x = 1\n__all__ = ["a", "b"]') == {"a", "b"}


def test_top_package_imports_only_the_client() -> None:
    assert check_imports("sandq", "from sandq.broker import host", is_package=True)
    assert check_imports("sandq", "from .model import names", is_package=True)
    assert not check_imports("sandq", "from sandq.client import connect\nfrom . import errors", is_package=True)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sandq.model.batch", "from sandq.model import names\nimport struct"),
        ("sandq.protocol.frames", "from sandq.model.errors import SandqError\nfrom .requests import parse"),
        ("sandq.partition.state_machine", "from sandq.partition import view\nfrom sandq.model import offsets"),
        ("sandq.storage.wal", "from sandq.metadata import state\nfrom sandq.model import offsets"),
        ("sandq.raft.group", "import pysyncobj.syncobj\nfrom sandq.storage.wal import Wal"),
        ("sandq.membership.datagrams", "from sandq.gossip import swim\nimport trio"),
        ("sandq.broker.replication.raft_group", "from sandq.raft import Group\nfrom sandq import __version__"),
        ("sandq.server.tcp", "from sandq.broker.replication.raft_group import Host"),
        ("sandq.node", "from sandq.server import tcp\nfrom sandq.cli import main"),
        ("sandq.cli", "from sandq.client import connect\nimport sandq\nprint(sandq.__version__)"),
        (
            "sandq.client.producer.producer",
            "from sandq.protocol import frames\nimport anyio\nfrom sandq.model import names",
        ),
        ("sandq.sync", "from sandq.client import Client"),
        ("sandq.spark.source.brokers", "import sandq\nfrom sandq.client import Client"),
        (
            "sandq.spark.source.columns",
            "import pyarrow as pa\nfrom sandq.protocol.replies_messages import Piece",
        ),
        ("sandq.testing.embedded", "from sandq.node import run\nfrom sandctl.main import main"),
        ("sandctl.main", "import sandq\nfrom sandq import connect\nfrom sandq.model import times"),
        ("sandctl.pipeline", "def run():\n    from sandq.spark import jobs"),
    ],
)
def test_correct_import_is_accepted(module: str, source: str) -> None:
    assert check_imports(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "def f():\n    import random",
        "import trio",
        "import anyio.abc",
        "import socket",
        "import threading",
        "import asyncio",
        "f = open('x')",
        "with path.open() as f: pass",
        "path.read_text()",
        "path.write_bytes(b'')",
        "from datetime import datetime\ndatetime.now()",
        "from datetime import datetime as d\nd.now(tz)",
        "import datetime\ndatetime.datetime.utcnow()",
        "import datetime\ndatetime.date.today()",
    ],
)
@pytest.mark.parametrize("module", ["sandq.model.times", "sandq.partition.state_machine", "sandq.gossip.swim"])
def test_impure_code_is_found(module: str, source: str) -> None:
    assert check_purity(module, source)


def test_purity_is_asked_of_pure_floors_only() -> None:
    for module in (
        "sandq.storage.wal",
        "sandq.broker.replication.raft_group",
        "sandq.membership.datagrams",
        "sandq.client.client",
    ):
        assert check_purity(module, "import time, trio\nopen('x')") == []
    assert check_purity("sandq.model.times", "state.now()\nfrom datetime import datetime, time") == []


def test_only_config_may_read_text_files() -> None:
    assert check_purity("sandq.model.config", "path.read_text()") == []
    assert check_purity("sandq.model.config", "open(path)")
    assert check_purity("sandq.model.settings", "path.read_text()")


def test_a_large_module_is_found() -> None:
    assert check_size("sandq.model.huge", "x = 1\n" * (MAX_LINES + 1))
    assert check_size("sandq.model.full", "x = 1\n" * MAX_LINES) == []


def test_a_circle_is_found() -> None:
    """Cycles are found through packages, type-only imports and imports in functions. Modules that only lead to a cycle
    are not part of it."""
    sources = [
        ("sandq.client.a", "from sandq.client.b import B", False),
        ("sandq.client.b", "if TYPE_CHECKING:\n    from sandq.client import c", False),
        ("sandq.client.c", "def f():\n    from sandq.client.a import A", False),
        ("sandq.client.d", "import sandq.client.a\nimport sandq.client.e", False),
        ("sandq.client.e", "import time", False),
    ]
    assert in_circles(graph_of(sources)) == {"sandq.client.a", "sandq.client.b", "sandq.client.c"}
    assert in_circles(graph_of(sources[1:])) == set()


def test_a_circle_of_rooms_is_found() -> None:
    """A cycle of rooms is found even without a cycle of modules, and for rooms that are one module."""
    sources = [
        ("sandq.broker", "from sandq.broker.top import run", True),
        ("sandq.broker.top", "from sandq.broker.reads import fetch", False),
        ("sandq.broker.reads", "", True),
        ("sandq.broker.reads.fetch", "import sandq.broker.writes.a", False),
        ("sandq.broker.reads.page", "", False),
        ("sandq.broker.writes.a", "def f():\n    from sandq.broker.clock import Clock", False),
        ("sandq.broker.writes.b", "from sandq.broker.reads.page import Page", False),
        ("sandq.broker.clock", "if TYPE_CHECKING:\n    from sandq.broker.reads.page import Page", False),
        ("sandq.server.tcp", "from sandq.broker.top import run\nfrom sandq.broker import clock", False),
    ]
    assert in_circles(graph_of(sources)) == set()
    assert circles_of_rooms("sandq.broker", sources) == [
        "sandq.broker.clock imports sandq.broker.reads.page",
        "sandq.broker.reads.fetch imports sandq.broker.writes.a",
        "sandq.broker.writes.a imports sandq.broker.clock",
        "sandq.broker.writes.b imports sandq.broker.reads.page",
    ]
    no_way_back = [source for source in sources if source[0] not in ("sandq.broker.clock", "sandq.broker.writes.b")]
    assert circles_of_rooms("sandq.broker", no_way_back) == []


def test_module_directly_in_a_package_is_its_own_group() -> None:
    assert room_of("sandq.broker.clock", "sandq.broker") == "sandq.broker.clock"
    assert room_of("sandq.broker.clock.peers.links", "sandq.broker") == "sandq.broker.clock"
    assert room_of("sandq.broker", "sandq.broker") == "sandq.broker"

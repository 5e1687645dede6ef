"""Tests that functions stay short, and that objects with many parts are created with keyword arguments.

mypy does not notice if two neighbouring positional arguments of one type are swapped. Long argument lists are
therefore keyword-only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.paths import ROOT
from tests.unit.test_floors import modules, parsed

FUNCTION_LINES = 80
POSITIONAL = 8
"""Maximum number of positional parameters, and of fields of a dataclass that is not keyword-only."""

BY_POSITION = {
    # Created for each sent message, where keywords cost time.
    *("sandq.client.producer.validation.message", "sandq.client.producer.batch_accumulator.add"),
    # Decoded from rows in the order of their fields, for each lease.
    *("sandq.partition.records.leases.Lease", "sandq.partition.records.leases.Waiting"),
}
"""Functions that still take more positional arguments. None may be added."""


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def long_functions(module: str, source: str) -> list[str]:
    """Return the functions with more than `FUNCTION_LINES` lines."""
    found = []
    for node in functions(source):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            found.append(f"{module}.{node.name}")
    return found


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a library passes the arguments by name: click to a command, FastAPI to a route."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return any(".command" in each or "click." in each or "router." in each or "_options" in each for each in decorators)


def many_positional(module: str, source: str) -> list[str]:
    """Return the functions and dataclasses with more than `POSITIONAL` positional arguments."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_command(node):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            if len([name for name in names if name not in ("self", "cls")]) > POSITIONAL:
                found.append(f"{module}.{node.name}")
        if isinstance(node, ast.ClassDef) and _is_positional_dataclass(node) and len(_fields(node)) > POSITIONAL:
            found.append(f"{module}.{node.name}")
    return found


def _is_positional_dataclass(node: ast.ClassDef) -> bool:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return any("dataclass" in each and "kw_only=True" not in each for each in decorators)


def _fields(node: ast.ClassDef) -> list[str]:
    """Return the fields that the constructor takes."""
    found = []
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if ast.unparse(each.annotation) in ("KW_ONLY", "dataclasses.KW_ONLY"):
            break
        is_field = "ClassVar" not in ast.unparse(each.annotation)
        default = "" if each.value is None else ast.unparse(each.value)
        if is_field and "init=False" not in default and "kw_only=True" not in default:
            found.append(each.target.id)
    return found


def test_functions_are_short() -> None:
    found = [line for module, source, _ in modules() for line in long_functions(module, source)]
    assert found == []


def test_many_arguments_are_passed_by_name() -> None:
    found = [line for module, source, _ in modules() for line in many_positional(module, source)]
    assert sorted(found) == sorted(BY_POSITION)


def test_long_function_is_found() -> None:
    body = "    x = 1\n" * FUNCTION_LINES
    assert long_functions("m", f"def f():\n{body}") == ["m.f"]
    assert long_functions("m", f"def f():\n{body[10:]}") == []
    names = ", ".join(f"a{number}" for number in range(POSITIONAL + 1))
    assert many_positional("m", f"class C:\n    def f(self, {names}): ...") == ["m.f"]
    assert many_positional("m", f"def f(a, *, {names}): ...") == []
    assert many_positional("m", f"@group.command()\ndef f({names}): ...") == []
    fields = "".join(f"    a{number}: int\n" for number in range(POSITIONAL + 1))
    assert many_positional("m", f"@dataclass\nclass C:\n{fields}") == ["m.C"]
    assert many_positional("m", f"@dataclass(kw_only=True)\nclass C:\n{fields}") == []
    assert many_positional("m", f"@dataclass\nclass C:\n    _: KW_ONLY\n{fields}") == []
    assert (ROOT / "sandq").is_dir()

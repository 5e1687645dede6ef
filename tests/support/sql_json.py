"""Provide queries over JSON with the answers of MariaDB, and with the answers of MySQL where they differ."""

from __future__ import annotations

import decimal
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from tests.support.paths import ROOT

_STORED: Final = json.loads((ROOT / "tests/data/sql_json_answers.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Asked:
    """A query and its result rows. `mysql`: the rows of MySQL, according to its manual; None: the same as MariaDB."""

    query: str
    mariadb: list[list[Any]]
    mysql: list[list[Any]] | None = None

    @property
    def text(self) -> str:
        """The statement, after a WITH clause that defines its input rows."""
        return str(_STORED["with"]) + self.query

    @property
    def text_for_mariadb(self) -> str:
        """The same statement without -> and ->>, which MariaDB does not have."""
        found = re.sub(r"([\w.]+)->>('[^']*')", r"JSON_UNQUOTE(JSON_EXTRACT(\1, \2))", self.query)
        return str(_STORED["with"]) + re.sub(r"([\w.]+)->('[^']*')", r"JSON_EXTRACT(\1, \2)", found)

    @property
    def expected(self) -> list[list[Any]]:
        """The rows that sandq answers."""
        return self.mariadb if self.mysql is None else self.mysql


ASKED: Final = [Asked(**one) for one in _STORED["queries"]]


def plain(value: Any) -> Any:
    """Return a cell in a form that compares equal despite different types of numbers or spaces in JSON."""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, (bool, decimal.Decimal, float)) and value == int(value):
        return int(value)
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return {"json": json.loads(value)}
    return value

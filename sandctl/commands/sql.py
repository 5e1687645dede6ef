"""`sandctl sql`: query the cluster."""

from __future__ import annotations

import datetime
import decimal
import sys
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.output.results import say, show_rows
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client

_NEEDED = ("sqlglot", "duckdb", "pyarrow")


@click.command()
@click.argument("statement", metavar="STATEMENT")
@click.option("--database", default="sandq", show_default=True, help="Database: sandq, z4 or information_schema.")
@click.option("--full-scan", is_flag=True, help="Allow queries that read whole topics.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Largest number of rows."
)
@common_options
def sql(statement: str, database: str, full_scan: bool, limit: int) -> None:
    """Query messages, keys, groups and the cluster in MySQL's SQL.

    Queries only read. "-" reads the STATEMENT from standard input. The tables are messages, dead_letters, leases, keys,
    schedules, groups, topics, partitions, nodes and forecast; `describe messages` shows the columns of a table. A query
    must name a topic and times, ids or keys, or have a LIMIT. `explain` shows the requests that a statement sends to
    the cluster. Times are UTC. Install it with `pip install 'sandq-client[sql]'`.

    \b
      sandctl sql "select state, count(*) from messages
          where topic = 'orders' and deliver_at < now() group by state"
      sandctl sql "select deliver_at, text from messages where topic = 'orders' limit 10"
      sandctl sql "describe messages"
    """
    import importlib.util

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(f"sql needs {', '.join(missing)}: pip install 'sandq-client[sql]'")
    text = sys.stdin.read() if statement == "-" else statement

    async def work(client: Client) -> Any:
        from sandq.sql import Budget, Ducks, Session
        from sandq.sql.scan import ALLOW

        given_s = settings().timeout_s
        budget = Budget() if given_s is None else Budget(seconds=given_s)
        ducks = Ducks(budget)
        try:
            session = Session(client, ducks, budget, database=database)
            session.variables.set(ALLOW, int(full_scan))
            answer = await session.run(text)
        finally:
            ducks.close()
        return answer.table

    table = run(work)
    if table is None:
        say("done", err=True)
        return
    names = list(dict.fromkeys(table.schema.names))
    rows: list[dict[str, Any]] = [
        {name: _plain(cell) for name, cell in row.items()} for row in table.slice(0, limit + 1).to_pylist()
    ]
    show_rows(rows, {name: name.upper() for name in names}, limit)


def _plain(cell: Any) -> Any:
    """Return a value that JSON can represent. Bytes that are UTF-8 become text."""
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(timespec="milliseconds" if cell.microsecond % 1000 == 0 else "microseconds") + "Z"
    if isinstance(cell, decimal.Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return cell
    return cell if cell is None or isinstance(cell, (bool, int, float, str, list, dict)) else str(cell)

from __future__ import annotations

from sandq.metadata import commands as m
from sandq.metadata.state import MetadataState, Topic
from sandq.model.errors import InvalidRequest, TopicExists, UnknownTopic

T = 1_800_000_000_000


class Table:
    """A metadata group on a table: entries pass through their encoding, rows are kept."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.state = MetadataState()
        self.index = 0
        self.apply(m.RegisterNode("n1", "store", {"client": "127.0.0.1:7170"}))

    def apply(self, *commands: m.Command) -> list[object]:
        self.index += 1
        entry = m.Entry.decode(m.Entry(T, commands).encode())
        results = self.state.apply(self.index, entry, self._put)
        self.state.write_state(self._put)
        return results

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def create(self, name: str, partitions: int = 1) -> object:
        return self.apply(m.CreateTopic(name, "timer", 1, [["n1"]] * partitions, {"lease_ms": 1}))[0]


def test_numbers_are_never_reused() -> None:
    table = Table()
    first = table.create("t", 2)
    table.apply(m.DeleteTopic("t"))
    second = table.create("t", 2)
    assert isinstance(first, Topic) and isinstance(second, Topic)
    assert (first.number, second.number) == (1, 2)
    assert [p.group for p in first.partitions + second.partitions] == [1, 2, 3, 4]
    members = [p.members[0] for p in first.partitions + second.partitions]
    assert members == ["n1#1", "n1#2", "n1#3", "n1#4"]


def test_refusals_change_nothing_and_the_rest_of_the_entry_is_applied() -> None:
    table = Table()
    table.create("t")
    results = table.apply(
        m.CreateTopic("t", "timer", 1, [["n1"]], {}),
        m.DeleteTopic("nobody"),
        m.CreateTopic("u", "timer", 1, [["elsewhere"]], {}),
        m.CreateTopic("v", "timer", 1, [["n1"]], {}),
    )
    assert [type(result) for result in results] == [TopicExists, UnknownTopic, InvalidRequest, Topic]
    assert sorted(table.state.topics) == ["t", "v"]


def test_rows_say_what_the_state_says() -> None:
    table = Table()
    table.create("t", 3)
    table.create("u")
    table.apply(m.DeleteTopic("u"))
    loaded = MetadataState.load(list(table.rows.items()))
    assert vars(loaded) == vars(table.state)


def test_an_index_that_was_applied_changes_nothing() -> None:
    table = Table()
    table.create("t")
    assert table.state.apply(table.index, m.Entry(T, [m.DeleteTopic("t")]), table._put) == []
    assert "t" in table.state.topics

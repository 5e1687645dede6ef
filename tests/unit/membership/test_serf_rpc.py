"""Tests of the RPC of a Serf agent: requests to a correct agent, and protection from a faulty one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import trio
import trio.testing

from sandq.membership import serf_rpc
from sandq.membership.serf_rpc import MAP_BYTES, MEMBERS_MOST, AgentMember, Refused, SerfRpc
from sandq.model.config_types import Address
from sandq.model.errors import ConnectionLost, FrameTooLarge, ProtocolError, StartupError, Unavailable
from tests.support.gossip.fake_serf_agent import FakeAgent, Spoiled, header, listed, pack, running
from tests.support.ports import free_port
from tests.support.stopped_time import loop_clock

# Agent and client run in this process, so delays of the machine must not count.
__all__ = ["loop_clock"]


Answer = Callable[[int], bytes]


def answer(*body: object) -> Answer:
    return lambda seq: header(seq) + pack(*body)


async def test_all_commands_work() -> None:
    agent = FakeAgent(auth_key="secret")
    agent.seeds = {"127.0.0.1:7000", "[::1]:7000"}
    async with running(agent), await SerfRpc.open(agent.address, "secret") as rpc:
        assert rpc.agent_name == "agent1"
        assert (await rpc.stats())["serf"] == {"members": "1"}
        await rpc.set_tags({"zone": "x", "id": "1"})
        await rpc.set_tags({"id": "2"}, ["zone", "none"])
        assert await rpc.members() == [AgentMember("agent1", Address("127.0.0.1", 7946), {"id": "2"}, "alive")]
        await rpc.join(Address("127.0.0.1", 7000))
        await rpc.join(Address("::1", 7000))
        with pytest.raises(Refused, match=r"refused 'join': 1 error occurred: \* 127.0.0.1:7001 refused$"):
            await rpc.join(Address("127.0.0.1", 7001))
        assert len(await rpc.members()) == 2
    assert [command for command, _ in agent.requests[:3]] == ["handshake", "auth", "stats"]


async def test_addresses_and_tags_are_read_as_they_come() -> None:
    agent = FakeAgent()
    mapped = bytes(10) + b"\xff\xff\x0a\0\0\x01"
    agent.members = {
        "v6": listed("v6") | {"Addr": b"\x20\x01\x0d\xb8" + bytes(11) + b"\x01"},
        "mapped": listed("mapped") | {"Addr": mapped, "Tags": {"k": b"\xff\x00ok"}},
        "untagged": listed("untagged", "none") | {"Tags": None},
    }
    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        assert await rpc.members() == [
            AgentMember("v6", Address("2001:db8::1", 7946), {}, "alive"),
            AgentMember("mapped", Address("10.0.0.1", 7946), {"k": "\\xff\0ok"}, "alive"),
            AgentMember("untagged", Address("127.0.0.1", 7946), {}, "none"),
        ]


async def test_many_ask_at_once_while_events_come() -> None:
    agent = FakeAgent()
    events = 0

    async def count_events() -> None:
        nonlocal events
        while True:
            await rpc.event()
            events += 1

    async def ask() -> None:
        for _ in range(20):
            assert [member.name for member in await rpc.members()] == ["agent1"]
            assert (await rpc.stats())["agent"]["name"] == "agent1"

    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        await rpc.stream_members()
        async with trio.open_nursery() as counter:
            counter.start_soon(count_events)
            async with trio.open_nursery() as askers:
                for _ in range(5):
                    askers.start_soon(ask)
                for _ in range(50):
                    await agent.happens()
                    await trio.lowlevel.checkpoint()
            counter.cancel_scope.cancel()
    assert 0 < events <= 50


async def test_event_is_reported_once_and_awaited() -> None:
    agent = FakeAgent()
    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        await rpc.stream_members()
        await agent.happens()
        await agent.happens()
        await rpc.members()
        await rpc.event()
        hints: list[str] = []

        async def hint() -> None:
            await rpc.event()
            hints.append("there is one more")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hint)
            await trio.testing.wait_all_tasks_blocked()
            assert hints == [], "two events make one hint"
            nursery.cancel_scope.cancel()
        await rpc.members()  # a cancelled wait leaves the connection unchanged
        await agent.happens()
        await rpc.event()


async def test_cancelled_reader_does_not_cancel_the_others() -> None:
    agent = FakeAgent()
    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rpc.stats)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert [member.name for member in await rpc.members()] == ["agent1"]


# ------------------------------------------------------------------------------------------------------ authentication


async def test_missing_agent_is_reported() -> None:
    nobody = Address("127.0.0.1", free_port())
    with pytest.raises(Unavailable, match=f"no Serf agent at {nobody}"):
        await SerfRpc.open(nobody)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("guess", "refused 'auth': Invalid authentication token: the given key is wrong .rpc_auth"),
        (None, "refused 'stats': Authentication required: it requires a key, and none was given .rpc_auth"),
    ],
)
async def test_a_wrong_key_and_none(given: str | None, said: str) -> None:
    agent = FakeAgent(auth_key="secret")
    async with running(agent):
        with pytest.raises(StartupError, match=said):
            await SerfRpc.open(agent.address, given)


async def test_refusal_is_raised_despite_later_records() -> None:
    """An agent that did not read the body of a request answers the body as if it were a request."""
    agent = FakeAgent()
    agent.spoiled["auth"] = lambda seq: header(seq, "Invalid authentication token") + header(0, "Unsupported command")
    async with running(agent):
        with pytest.raises(StartupError, match="Invalid authentication token"):
            await SerfRpc.open(agent.address, "guess")


async def test_unsupported_rpc_version_raises_startup_error() -> None:
    agent = FakeAgent()
    agent.spoiled["handshake"] = lambda seq: header(seq, "Unsupported IPC version")
    async with running(agent):
        with pytest.raises(StartupError, match="version 1 of Serf's RPC"):
            await SerfRpc.open(agent.address)


# ---------------------------------------------------------------------------------------------------------- bad agents


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a map is expected, not 72"),
        (b"\xc1", "no msgpack"),
        (b"\x91" * 2000, "no msgpack"),
        (b"\xc7\x01\x01\x00", "no msgpack"),
        (pack(["Seq", 1]), "a map is expected"),
        (pack({"Error": ""}), "Seq is None"),
        (pack({"Seq": "one", "Error": ""}), "Seq is b'one'"),
        (pack({"Seq": 3, "Error": ["no"]}), "Error is"),
        (pack({1: 2}), "no msgpack"),
        (header(99), "request 99"),
        (answer("a text"), "a map is expected, not b'a text'"),
        (answer({}), "an array is expected, not None"),
        (answer({"Members": {}}), "an array is expected"),
        (answer({"Members": ["agent1"]}), "a map is expected"),
        (answer({"Members": [{}]}), "Name is None"),
        (answer({"Members": [listed("a") | {"Addr": b"1"}]}), "Addr has 1 bytes"),
        (answer({"Members": [listed("a") | {"Port": 70_000}]}), "Port is 70000"),
        (answer({"Members": [listed("a") | {"Tags": {"k": 1}}]}), "a text is expected, not 1"),
        (answer({"Members": [listed("a") | {"Status": 1}]}), "Status is 1"),
        (lambda seq: header(seq) + b"\x81\xa7Members\xdd" + struct.pack(">I", MEMBERS_MOST + 1), "no msgpack"),
    ],
)
async def test_garbage_ends_the_connection(spoiled: Spoiled, said: str) -> None:
    agent = FakeAgent()
    agent.spoiled["members"] = spoiled
    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        with pytest.raises(ProtocolError, match=f"at {agent.address} does not send Serf.*{said}"):
            await rpc.members()


async def test_an_agent_without_a_name() -> None:
    agent = FakeAgent()
    agent.spoiled["stats"] = answer({"agent": {}})
    async with running(agent):
        with pytest.raises(ProtocolError, match="does not report its name"):
            await SerfRpc.open(agent.address)


class PouringAgent(FakeAgent):
    """An agent that begins a list of members with `begins` and then sends `goes_on` without end."""

    begins, goes_on = b"", b""
    poured = 0

    async def _spoil(self, stream: trio.SocketStream, seq: int, spoiled: Spoiled) -> None:
        await stream.send_all(header(seq) + b"\x81\xa7Members" + self.begins)
        while True:
            await stream.send_all(self.goes_on)
            self.poured += len(self.goes_on)


ARRAY = b"\xdc" + struct.pack(">H", 8000)


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        pytest.param(b"\xdb" + struct.pack(">I", 1 << 31), bytes(1 << 16), id="one text"),
        pytest.param(ARRAY, ARRAY + pack("x" * 1000) * 8000, id="many texts"),
        pytest.param(ARRAY, ARRAY + pack({"k": "v"}) * 8000, id="many maps"),
    ],
)
async def test_an_endless_answer_is_not_taken(begins: bytes, goes_on: bytes) -> None:
    agent = PouringAgent()
    agent.spoiled["members"] = None
    agent.begins, agent.goes_on = begins, goes_on
    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        for _ in range(2):
            with pytest.raises(FrameTooLarge, match=f"more than {MAP_BYTES} bytes"):
                await rpc.members()
    assert MAP_BYTES / 4 < agent.poured < 2 * MAP_BYTES


async def test_a_large_answer_within_the_limit_in_small_pieces() -> None:
    agent = FakeAgent()
    agent.members = {f"{number}": listed(f"{number}", zone="x" * 400) for number in range(MEMBERS_MOST)}
    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        for _ in range(6):  # more than MAP_BYTES in all
            assert len(await rpc.members()) == MEMBERS_MOST


async def test_every_pending_request_fails_when_the_connection_is_lost() -> None:
    agent = FakeAgent()
    lost = 0

    async def waits(wait: Callable[[], object]) -> None:
        nonlocal lost
        with pytest.raises(ConnectionLost, match=f"{agent.address} closed the connection"):
            await wait()  # type: ignore[misc]
        lost += 1

    async with running(agent), await SerfRpc.open(agent.address) as rpc:
        await rpc.stream_members()
        agent.spoiled = {"members": b"", "stats": b""}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits, rpc.event)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(waits, rpc.members)
            nursery.start_soon(waits, rpc.stats)
        await waits(rpc.members)
    assert lost == 4


async def test_a_slow_agent_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = FakeAgent()
    agent.spoiled = {"members": None, "join": None}
    monkeypatch.setattr(serf_rpc, "JOIN_S", 0.5)
    async with running(agent):
        async with await SerfRpc.open(agent.address, answer_s=0.3) as rpc:
            with pytest.raises(ConnectionLost, match=r"'members' within 0\.3 s"):
                await rpc.members()
            with pytest.raises(ConnectionLost, match="'members'"):
                await rpc.stats()
        async with await SerfRpc.open(agent.address, answer_s=0.3) as rpc:
            with pytest.raises(ConnectionLost, match=r"'join' within 0\.5 s"):
                await rpc.join(Address("127.0.0.1", 1))


async def test_event_records_do_not_extend_the_reply_timeout() -> None:
    """Records alone do not keep an unanswered request alive."""
    agent = FakeAgent()
    agent.spoiled["members"] = None
    async with running(agent) as nursery, await SerfRpc.open(agent.address, answer_s=0.2) as rpc:
        await rpc.stream_members()

        async def chatter() -> None:
            while True:
                await agent.happens()
                await trio.sleep(0.02)

        nursery.start_soon(chatter)
        with pytest.raises(ConnectionLost, match="'members' within"):
            await rpc.members()


async def test_request_on_closed_connection_raises_connection_lost() -> None:
    agent = FakeAgent()
    async with running(agent):
        async with await SerfRpc.open(agent.address) as rpc:
            pass
        with pytest.raises(ConnectionLost, match="was closed here"):
            await rpc.members()

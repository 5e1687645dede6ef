"""A client of a Serf agent's RPC (IPC version 1): what sandq asks of an agent that the site runs.

One TCP connection of msgpack maps, one behind the other without framing::

    request  {Command, Seq}, then a body if the command takes one
    answer   {Seq, Error}, then a body if the command gives one; Error is empty when it was done
    event    {Seq, Error} with the Seq of the `stream` request, then a record, at any time between two answers

Nothing says where the next map begins, so whatever cannot be understood ends the connection, and so does an agent that
takes too long. Nothing here ends the agent: it is the site's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import msgpack
import trio

from sandq.gossip.fields import U64_MAX, Fields, address, as_fields, name, number, pack, raw, unreadable
from sandq.model.config_schema import Address
from sandq.model.errors import ConnectionLost, FrameTooLarge, ProtocolError, SandqError, StartupError, Unavailable

IPC_VERSION: Final = 1
CONNECT_S: Final = 2.0
ANSWER_S: Final = 10.0
"""For an answer. An agent that changes its tags tells others of it first, for up to 5 s."""
JOIN_S: Final = 30.0
"""The agent connects (10 s, with its settings for a LAN) to every address that a seed's name has."""
MAP_BYTES: Final = 16 << 20
"""Of one map, a header or a body, at most."""
MEMBERS_MOST: Final = 8192
"""Of an array, so of the members too: room for all is made when it begins."""
FIELDS_MOST: Final = 1024
"""Of a map."""
ERROR_BYTES: Final = 64 << 10
SHOWN_CHARS: Final = 500
"""Of what an agent says, in our errors."""
RECEIVE_BYTES: Final = 64 << 10
MEMBER_EVENTS: Final = "member-join,member-leave,member-failed,member-update,member-reap"


@dataclass(frozen=True, slots=True)
class AgentMember:
    """A member as the agent lists it; `status`: alive, leaving, left, failed or none."""

    name: str
    address: Address
    tags: Mapping[str, str]
    status: str


class Refused(Unavailable):
    """The agent answered with an error; the connection is as good as before."""


@dataclass(slots=True)
class _Answer:
    """What is waited for. `error`: None before the header has come."""

    gives_body: bool
    gives_body_with_error: bool = False
    error: str | None = None
    body: Fields | None = None
    whole: bool = False


class SerfRpc:
    """A connection that is ready: `async with await SerfRpc.open(...) as rpc`.

    Any number of tasks may call it at once; the agent answers one after the other. All methods raise ConnectionLost
    when the connection has ended, ProtocolError when the agent speaks another protocol, Refused when it says no.
    """

    agent_name: str

    def __init__(self, stream: trio.SocketStream, agent: Address, answer_s: float) -> None:
        self._stream = stream
        self._answer_s = answer_s
        self._where = f"the Serf agent at {agent}"
        self._unpacker = msgpack.Unpacker(
            raw=True,
            use_list=False,
            max_buffer_size=MAP_BYTES + RECEIVE_BYTES,
            max_array_len=MEMBERS_MOST,
            max_map_len=FIELDS_MOST,
            max_ext_len=0,
        )
        self._received_bytes = 0
        self._taken_bytes = 0
        self._sending = trio.Lock()
        self._receiving = trio.Lock()
        self._seq = 0
        self._answers: dict[int, _Answer] = {}
        self._due: _Answer | None = None
        """Whose body comes next."""
        self._events_seq: int | None = None
        self._event = False
        self._ended: SandqError | None = None

    @classmethod
    async def open(cls, agent: Address, auth_key: str | None = None, *, answer_s: float = ANSWER_S) -> Self:
        """Connect, and be let in. Unavailable when there is no agent; StartupError when it does not let us in."""
        try:
            with trio.fail_after(CONNECT_S):
                stream = await trio.open_tcp_stream(*agent)
        except trio.TooSlowError:
            raise Unavailable(f"there is no Serf agent at {agent}: no answer in {CONNECT_S:g} s") from None
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"there is no Serf agent at {agent}: {error}") from None
        rpc = cls(stream, agent, answer_s)
        try:
            await rpc._introduce(auth_key)
            return rpc
        except BaseException:
            await rpc.aclose()
            raise

    async def _introduce(self, auth_key: str | None) -> None:
        try:
            await self._ask("handshake", {"Version": IPC_VERSION})
        except Refused as error:
            raise StartupError(f"{error.message}: sandq speaks version {IPC_VERSION} of Serf's RPC") from None
        try:
            if auth_key is not None:
                await self._ask("auth", {"AuthKey": auth_key})
            self.agent_name = (await self.stats())["agent"]["name"]
        except Refused as error:
            key = "a key is needed, and none was given" if auth_key is None else "the key that was given is not its key"
            raise StartupError(f"{error.message}: {key} (rpc_auth in the agent's configuration file)") from None
        except KeyError:
            raise ProtocolError(f"{self._where} does not say its name") from None

    async def aclose(self) -> None:
        """Close at once; whoever waits gets ConnectionLost."""
        self._end(ConnectionLost(f"the connection to {self._where} was closed here"))
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- commands -------------------------------------------------------------------------------------------------

    async def members(self) -> Sequence[AgentMember]:
        """Everybody that the agent lists, itself included, in no order."""
        body = await self._ask("members", gives_body=True)
        listed = body.get(b"Members")
        try:
            return [_member(as_fields(member)) for member in _array(listed)]
        except ProtocolError as error:
            raise self._unlike_serf(error) from None

    async def stats(self) -> Mapping[str, Mapping[str, str]]:
        """What the agent says of itself: section -> key -> value."""
        body = await self._ask("stats", gives_body=True)
        try:
            return {_text(section): _texts(as_fields(values)) for section, values in body.items()}
        except ProtocolError as error:
            raise self._unlike_serf(error) from None

    async def set_tags(self, tags: Mapping[str, str], delete: Sequence[str] = ()) -> None:
        """Change the agent's own tags: those that are not named stay. No tag may be in both."""
        await self._ask("tags", {"Tags": dict(tags), "DeleteTags": list(delete)})

    async def join(self, seed: Address) -> None:
        """Let the agent meet a member. Refused when that did not answer. Holds up all other answers meanwhile."""
        body = {"Existing": [str(seed)], "Replay": False}
        await self._ask("join", body, gives_body=True, gives_body_with_error=True, within_s=max(JOIN_S, self._answer_s))

    async def stream_members(self) -> None:
        """Ask for the events of members, for `event`; once."""
        await self._ask("stream", {"Type": MEMBER_EVENTS}, streams=True)

    async def event(self) -> None:
        """Until something about members has happened since the last call. A hint: the agent loses events of a slow
        reader, and tells them a second or so late."""
        await self._receive_until(lambda: self._event)
        self._event = False

    # -- the connection -------------------------------------------------------------------------------------------

    async def _ask(
        self,
        command: str,
        body: Mapping[str, object] | None = None,
        *,
        gives_body: bool = False,
        gives_body_with_error: bool = False,
        streams: bool = False,
        within_s: float | None = None,
    ) -> Fields:
        """The answer's body; an empty one when it has none."""
        self._seq += 1
        answer = self._answers[self._seq] = _Answer(gives_body, gives_body_with_error)
        if streams:
            self._events_seq = self._seq
        request = pack({"Command": command, "Seq": self._seq}) + (b"" if body is None else pack(body))
        within_s = self._answer_s if within_s is None else within_s
        with trio.move_on_after(within_s) as scope:
            await self._send(request)
            await self._receive_until(lambda: answer.whole)
        if scope.cancelled_caught:
            self._end(ConnectionLost(f"{self._where} did not answer {command!r} within {within_s:g} s"))
            self._check()
        if answer.error:
            raise Refused(f"{self._where} refused {command!r}: {answer.error}")
        return answer.body or {}

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            self._check()
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._end(ConnectionLost(f"the connection to {self._where} broke: {error}"))
                self._check()
            except trio.Cancelled:
                # Half a request may have gone out, and nothing says where the next one begins.
                self._end(ConnectionLost(f"the connection to {self._where} was given up amid a request"))
                raise

    async def _receive_until(self, done: Callable[[], bool]) -> None:
        """Whoever waits receives, for all: one piece, and then it is the next one's turn."""
        while not done():
            async with self._receiving:
                if not done():
                    self._check()
                    await self._receive()

    async def _receive(self) -> None:
        """One piece. A fault in it ends the connection, and is raised by `_check`: the answers before it are whole."""
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(ConnectionLost(f"the connection to {self._where} broke: {error}"))
            return
        if not data:
            self._end(ConnectionLost(f"{self._where} closed the connection"))
            return
        try:
            self._feed(data)
        except FrameTooLarge as error:
            self._end(error)
        except ProtocolError as error:
            self._end(self._unlike_serf(error))

    def _feed(self, data: bytes) -> None:
        """Take what is whole now."""
        try:
            self._unpacker.feed(data)
            for value in self._unpacker:
                self._taken_bytes = self._unpacker.tell()
                self._take(as_fields(value))
        except ProtocolError:
            raise
        except Exception as error:  # msgpack raises a dozen kinds
            raise unreadable(error) from None
        self._received_bytes += len(data)
        # Not the unpacker's buffer: what is decoded already of a map that is not whole has left it.
        if self._received_bytes - self._taken_bytes > MAP_BYTES:
            raise FrameTooLarge(
                f"{self._where} sends an answer of more than {MAP_BYTES} bytes",
                limit="serf_answer_bytes",
                maximum=MAP_BYTES,
            )

    def _take(self, fields: Fields) -> None:
        """A header or a body."""
        if self._due is not None:
            self._due.body, self._due.whole = fields, True
            self._due = None
            return
        seq = number(fields, b"Seq", U64_MAX)
        error = " ".join(raw(fields, b"Error", ERROR_BYTES).decode(errors="replace").split())[:SHOWN_CHARS]
        answer = self._answers.pop(seq, None)
        if answer is None:
            if seq != self._events_seq:
                raise ProtocolError(f"an answer to request {seq}, which is not waiting for one")
            self._event = True
            answer = _Answer(gives_body=True)
        answer.error = error
        if answer.gives_body and (not error or answer.gives_body_with_error):
            self._due = answer
        else:
            answer.whole = True

    # -- its end --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(self._ended.message, **self._ended.details)

    def _end(self, error: SandqError) -> None:
        """Close; what ended it first is what everybody is told."""
        if self._ended is None:
            self._ended = error
        self._stream.socket.close()

    def _unlike_serf(self, error: ProtocolError) -> ProtocolError:
        return ProtocolError(f"what {self._where} sends is not Serf's RPC: {error.message}")


def _member(fields: Fields) -> AgentMember:
    return AgentMember(
        name(fields, b"Name"),
        address(fields, b"Addr", b"Port"),
        _texts(as_fields(fields.get(b"Tags") or {})),
        raw(fields, b"Status", SHOWN_CHARS).decode(errors="backslashreplace"),
    )


def _array(value: Any) -> Sequence[Any]:
    if type(value) is not tuple:
        raise ProtocolError(f"an array is expected, not {value!r:.40}")
    return value


def _texts(fields: Fields) -> Mapping[str, str]:
    return {_text(key): _text(value) for key, value in fields.items()}


def _text(value: Any) -> str:
    """Tags are other machines' too: what is no UTF-8 there must not hide everybody else."""
    if type(value) is not bytes:
        raise ProtocolError(f"a text is expected, not {value!r:.40}")
    return value.decode(errors="backslashreplace")

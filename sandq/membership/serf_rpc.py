"""A client of a Serf agent's RPC (IPC version 1), with the requests that sandq needs.

One TCP connection with consecutive msgpack maps, without framing::

    request  {Command, Seq}, then a body if the command takes one
    answer   {Seq, Error}, then a body if the command gives one; Error is empty if it succeeded
    event    {Seq, Error} with the Seq of the `stream` request, then a record, at any time between two answers

Nothing marks where a map starts. So after invalid data or a timeout, the next map cannot be found, and the connection
ends. This module never stops the agent, because the agent belongs to the site.
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
"""Timeout of an answer, in seconds. An agent that changes its tags first informs other agents, for up to 5 s."""
JOIN_S: Final = 30.0
"""Timeout of `join`, in seconds: the agent connects to every address of a seed's name (10 s each in a LAN)."""
MAP_BYTES: Final = 16 << 20
"""Maximum size of one map, a header or a body."""
MEMBERS_MOST: Final = 8192
"""Maximum length of an array, which includes the list of members: msgpack allocates it when it begins."""
FIELDS_MOST: Final = 1024
"""Maximum number of keys of a map."""
ERROR_BYTES: Final = 64 << 10
SHOWN_CHARS: Final = 500
"""Maximum length of an agent's text in our errors."""
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
    """The agent replied with an error; the connection stays usable."""


@dataclass(slots=True)
class _Answer:
    """An expected answer. `error`: None until the header has arrived."""

    gives_body: bool
    gives_body_with_error: bool = False
    error: str | None = None
    body: Fields | None = None
    whole: bool = False


class SerfRpc:
    """An authenticated connection: `async with await SerfRpc.open(...) as rpc`.

    Any number of tasks may call it concurrently; the agent answers the requests one after the other. All methods raise
    ConnectionLost if the connection has ended, ProtocolError if the agent speaks a different protocol, Refused if it
    reports an error.
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
        """The answer whose body comes next."""
        self._events_seq: int | None = None
        self._event = False
        self._ended: SandqError | None = None

    @classmethod
    async def open(cls, agent: Address, auth_key: str | None = None, *, answer_s: float = ANSWER_S) -> Self:
        """Connect and authenticate. Raises Unavailable if there is no agent; StartupError if it rejects us."""
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
            key = "it requires a key, and none was given" if auth_key is None else "the given key is wrong"
            raise StartupError(f"{error.message}: {key} (rpc_auth in the agent's configuration file)") from None
        except KeyError:
            raise ProtocolError(f"{self._where} does not report its name") from None

    async def aclose(self) -> None:
        """Close at once; waiting tasks get ConnectionLost."""
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
        """Return all members that the agent lists, including itself, in no particular order."""
        body = await self._ask("members", gives_body=True)
        listed = body.get(b"Members")
        try:
            return [_member(as_fields(member)) for member in _array(listed)]
        except ProtocolError as error:
            raise self._unlike_serf(error) from None

    async def stats(self) -> Mapping[str, Mapping[str, str]]:
        """Return the agent's statistics about itself: section -> key -> value."""
        body = await self._ask("stats", gives_body=True)
        try:
            return {_text(section): _texts(as_fields(values)) for section, values in body.items()}
        except ProtocolError as error:
            raise self._unlike_serf(error) from None

    async def set_tags(self, tags: Mapping[str, str], delete: Sequence[str] = ()) -> None:
        """Change the agent's own tags; tags that are not named stay. No tag may be in both arguments."""
        await self._ask("tags", {"Tags": dict(tags), "DeleteTags": list(delete)})

    async def join(self, seed: Address) -> None:
        """Let the agent contact a member. Raises Refused if the member did not answer. Other answers wait meanwhile."""
        body = {"Existing": [str(seed)], "Replay": False}
        await self._ask("join", body, gives_body=True, gives_body_with_error=True, within_s=max(JOIN_S, self._answer_s))

    async def stream_members(self) -> None:
        """Request the events of members, which `event` waits for. Call this method only once."""
        await self._ask("stream", {"Type": MEMBER_EVENTS}, streams=True)

    async def event(self) -> None:
        """Wait until an event about members has come since the last call.

        It is only a hint: the agent drops events of slow readers, and sends them about a second late.
        """
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
        """Send a request and return the answer's body; empty if the answer has none."""
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
                # A part of the request may have been sent, and nothing marks the beginning of the next one.
                self._end(ConnectionLost(f"the connection to {self._where} was closed during a request"))
                raise

    async def _receive_until(self, done: Callable[[], bool]) -> None:
        """Receive until `done`. Waiting tasks take turns: each receives one piece, for all of them."""
        while not done():
            async with self._receiving:
                if not done():
                    self._check()
                    await self._receive()

    async def _receive(self) -> None:
        """Receive one piece. An error in the piece ends the connection.

        The error is not raised here: calls whose answer came before it succeed, and `_check` raises it in all others.
        """
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
        """Process the complete maps in the received data."""
        try:
            self._unpacker.feed(data)
            for value in self._unpacker:
                self._taken_bytes = self._unpacker.tell()
                self._take(as_fields(value))
        except ProtocolError:
            raise
        except Exception as error:  # msgpack raises a dozen different exceptions
            raise unreadable(error) from None
        self._received_bytes += len(data)
        # The unpacker's buffer does not count: the decoded part of an incomplete map is no longer in it.
        if self._received_bytes - self._taken_bytes > MAP_BYTES:
            raise FrameTooLarge(
                f"{self._where} sends an answer of more than {MAP_BYTES} bytes",
                limit="serf_answer_bytes",
                maximum=MAP_BYTES,
            )

    def _take(self, fields: Fields) -> None:
        """Process a header or a body."""
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
        """Close the connection; all later calls raise the first error."""
        if self._ended is None:
            self._ended = error
        self._stream.socket.close()

    def _unlike_serf(self, error: ProtocolError) -> ProtocolError:
        return ProtocolError(f"{self._where} does not send Serf's RPC: {error.message}")


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
    """Decode a text. Tags of other machines may be invalid UTF-8, which must not hide all members."""
    if type(value) is not bytes:
        raise ProtocolError(f"a text is expected, not {value!r:.40}")
    return value.decode(errors="backslashreplace")

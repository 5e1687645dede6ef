"""Model a timer partition in plain Python: dictionaries of messages, and the state of each message in each group.

The model follows design.md and formats.md instead of the code. It has no rows, heaps or look-aheads. Times are ms after
T. The partition chooses the time of some changes. The model observes these changes and checks that they are allowed:
expired messages become dead (`seen_dead`) or are dropped (`seen_dropped`), the log is trimmed (`seen_trimmed`), groups
copy messages (`seen_copied`), and keys of trimmed messages are forgotten (`seen_keys`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sandq.partition import commands as c
from tests.support.partition.bench import T
from tests.support.partition.model_types import (
    CANCEL_MEMORY,
    PIN,
    Entry,
    Group,
    Held,
    Key,
    Lease,
    Message,
    Row,
    offset_of,
)


class Model:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.now = 0
        self.floor = 0
        self.index = 0
        self.seq = 0
        self.trimmed = bytes(16)
        self.messages: dict[str, Message] = {}
        self.groups: dict[str, Group] = {}
        self.leases: dict[int, Lease] = {}
        self.keys: dict[str, Key] = {}
        self.ever: dict[bytes, str] = {}
        """Name of the message, by each offset that it has ever had."""
        self.outcomes: list[tuple[int, str, bytes | str]] = []
        """Results of the last append for unique keys that were in use: position, outcome, and the id or state."""
        self.ghosts: list[int] = []
        """Delivery times of messages that were trimmed, then cancelled or moved. Counters still include them."""

    def begin(self, index: int, at: int) -> None:
        """Begin an entry."""
        self.index = index
        self.now = max(self.now, at)
        self.floor = max(self.floor, self.now)
        for group in self.groups.values():
            if group.paused_until is not None and group.paused_until <= self.now:
                group.paused, group.paused_until, group.touched = False, None, self.now

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def ordered(self) -> bool:
        return self.settings["ordering"] == "key" or self.settings["max_in_flight_per_key"] is not None

    def limit_of(self, group: Group) -> int:
        """Return how many messages of a key may be leased or waiting at the same time."""
        if self.settings["ordering"] == "key":
            return 1
        most: int = self.settings["max_in_flight_per_key"]
        return min(most, group.settings.get("max_in_flight_per_key", most))

    def in_log(self) -> list[Message]:
        """Return the messages of the log by offset."""
        found = (m for m in self.messages.values() if m.gone is None and m.offset > self.trimmed)
        return sorted(found, key=lambda m: m.offset)

    def by_offset(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: self.messages[name].offset)

    def expires(self, name: str, held: Held | None = None) -> int | None:
        message = self.messages[name]
        ttl = self.settings["ttl_ms"] if message.ttl is None else message.ttl
        return None if ttl is None or (held is not None and held.immortal) else message.at + ttl

    def doomed(self, name: str, held: Held | None = None) -> bool:
        expires = self.expires(name, held)
        return expires is not None and expires <= self.now

    def _dies_first(self, name: str, held: Held) -> bool:
        """Return whether a message expires before its next attempt is due."""
        expires = self.expires(name, held)
        return expires is not None and expires <= held.due

    def is_pending(self, name: str) -> bool:
        """Return whether the message waits for its first attempt in all groups."""
        return all(self.pending_in(group, name) for group in self.groups.values())

    def pending_in(self, group: Group, name: str) -> bool:
        held = group.held.get(name)
        if held is not None and held.state == "dead" and group.seek_from is not None:
            return self.messages[name].offset >= group.start
        return held.state == "blocked" if held is not None else self.messages[name].offset >= group.start

    def is_kept(self, name: str) -> bool:
        """Return whether a trimmed message is still in a row of some group."""
        message = self.messages[name]
        held = [group.held[name].state for group in self.groups.values() if name in group.held]
        return message.gone is None and message.offset <= self.trimmed and any(state != "dead" for state in held)

    def claim(self, name: str) -> tuple[bool, bool, str | None]:
        """Return three facts about a message.

        Whether some group has not leased it, whether it waits for a retry in some group, and the state because of which
        its producer cannot change it (None: the producer can)."""
        if any(group.seek_from is not None and group.holds_spilled(name) for group in self.groups.values()):
            return False, False, "waiting"
        tried = [group for group in self.groups.values() if not self.pending_in(group, name)]
        states = {group.held[name].state if name in group.held else "acked" for group in tried}
        is_pending = len(tried) < len(self.groups) or not self.groups
        return is_pending, "waiting" in states, next((s for s in ("leased", "dead", "acked") if s in states), None)

    def state_in(self, group: Group, name: str) -> str:
        if self.pending_in(group, name):
            blocked = name in group.held and group.held[name].state == "blocked"
            return "ready" if blocked or self.messages[name].at <= self.now else "delayed"
        held = group.held.get(name)
        if held is not None and held.state == "waiting" and held.due <= self.now:
            return "ready"
        return held.state if held is not None else "acked"

    def state(self, name: str) -> str:
        """Return the state over all groups."""
        states = {self.state_in(group, name) for group in self.groups.values()}
        if not states:
            return "ready" if self.messages[name].at <= self.now else "delayed"
        return next(s for s in ("leased", "waiting", "dead", "ready", "delayed", "acked") if s in states)

    def busy(self, group: Group) -> Counter[str]:
        """Return the number of leased and waiting messages, by key."""
        keys = (self.messages[name].key for name in group.of("leased", "waiting"))
        return Counter(key for key in keys if key is not None and self.ordered)

    def is_held_up(self, group: Group, key: str | None) -> bool:
        """Return whether the next message of a key is blocked."""
        if not self.ordered or key is None:
            return False
        is_blocked = any(self.messages[name].key == key for name in group.of("blocked"))
        return is_blocked or self.busy(group)[key] >= self.limit_of(group)

    def free(self, group: Group) -> list[str]:
        """Return the blocked messages that may be leased now."""
        busy = self.busy(group)
        found: list[str] = []
        for name in self.by_offset(group.of("blocked")):
            key = str(self.messages[name].key)
            if busy[key] < self.limit_of(group):
                busy[key] += 1
                found.append(name)
        return found

    def recalled_at(self, name: str, held: Held) -> int:
        """Return the time of a spilled message: its next attempt or its expiry, whichever is first."""
        expires = self.expires(name, held)
        return held.due if expires is None else min(held.due, expires)

    def recall(self, group: Group, names: Iterable[str]) -> None:
        """Bring spilled messages into memory: they are queued again, together with messages in the same state."""
        last: Any = None
        seq = 0
        for name in sorted(names, key=lambda n: (self.recalled_at(n, group.held[n]), self.messages[n].offset)):
            held = group.held[name]
            state = (self.recalled_at(name, held), held.due, held.attempt, held.error, held.since, held.history)
            state = (*state, held.made, held.snoozes, held.crashes)
            if state != last:
                last, seq = state, self.next_seq()
            held.seq, held.spilled = seq, False

    def seen_spilled(self, group: Group, found: set[bytes]) -> None:
        """Check which messages wait in rows only. `found`: the offsets of these messages."""
        recalled = []
        for name, held in group.held.items():
            is_spilled = self.messages[name].offset in found
            if is_spilled and not held.spilled:
                assert held.state == "waiting" and held.due > self.now and not self.ordered, f"{name} was spilled"
                held.spilled = held.copied = True
            elif held.spilled and not is_spilled:
                assert self.recalled_at(name, held) <= self.now, f"{name} was recalled too early"
                recalled.append(name)
        self.recall(group, recalled)
        assert found == {self.messages[name].offset for name, held in group.held.items() if held.spilled}

    def ahead_of(self, group: Group) -> list[Message]:
        """Return the messages of the log that the group has not read yet."""
        return [m for m in self.in_log() if m.offset >= group.start]

    def next_at(self, group: Group) -> int | None:
        """Return the time at which a message can be leased next, or the end of the pause."""
        if group.paused or group.seek_from is not None:
            return group.paused_until if group.seek_from is None else None
        times = [
            self.recalled_at(name, held) if held.spilled else held.due for name, held in group.of("waiting").items()
        ]
        times += [self.messages[name].at for name in self.free(group)[:1]]
        times += [m.at for m in self.ahead_of(group)[:1]]
        return min(times, default=None)

    def dead_of(self, group: Group) -> dict[bytes, Entry]:
        dead = {self.messages[name].offset: self._entry(name, d) for name, d in group.of("dead").items()}
        return dead | group.stale

    def _entry(self, name: str, d: Held) -> Entry:
        return (name, d.attempt, d.reason, d.error, d.dead_at, d.history, d.lives)

    def _take_out(self, name: str) -> None:
        """Remove the message from all groups."""
        for group in self.groups.values():
            held = group.held.pop(name, None)
            if held is not None and held.state == "dead":
                group.stale[self.messages[name].offset] = self._entry(name, held)

    def seconds(self) -> Counter[int]:
        """Return the number of messages in the log by second, without messages that their producers have removed."""
        stand = [m.at for m in self.messages.values() if m.gone is None]
        return Counter((T + at) // 1000 for at in [*stand, *self.ghosts])

    def instants(self) -> set[int]:
        """Return the times at which a message or a group changes its state without a command."""
        names = [(group.held.get(name), name) for group in self.groups.values() for name in self.messages]
        found = {self.expires(name, held) for held, name in names} | {m.at for m in self.messages.values()}
        found |= {held.due for held, _ in names if held is not None and held.state == "waiting"}
        found |= {held.since + PIN for held, _ in names if held is not None}
        found |= {self.messages[n].at + PIN for held, n in names if held is not None and held.state == "blocked"}
        found |= {lease.deadline for lease in self.leases.values() if lease.live}
        found |= {key.until for key in self.keys.values()}
        found |= {m.gone_at + CANCEL_MEMORY for m in self.messages.values() if m.gone == "cancelled"}
        return {at for at in found if at is not None}

    # -- appends --------------------------------------------------------------------------------------------------

    def append(
        self, rows: list[Row], relative: bool, policy: int, whole: bool
    ) -> tuple[list[bytes], list[tuple[int, str]]]:
        """Return the answer for each row, and the conflicts.

        The answer is the offset of the stored message, or the id of the message that already has the key."""
        answers: list[bytes] = []
        refused: list[tuple[int, str]] = []
        base = b""
        self.outcomes = []
        for place, row in enumerate(rows):
            at = max((row.due or 0) + (self.now if relative else 0), self.floor)
            offset = offset_of(at, self.index, place)
            base = base or offset
            if row.unique is not None:
                refusal = self._resolve(row.unique, policy, place)
                if refusal is not None:
                    answers.append(self.messages[refusal[0]].id)
                    if refusal[1] is not None:
                        refused.append((place, refusal[1]))
                    continue
                self.keys[row.unique] = Key("held", row.name)
            self.messages[row.name] = Message(
                row.name, offset, offset, at, row.key, row.ttl, row.unique, self.now, base if whole else offset
            )
            self.messages[row.name].rules = row.rules
            self.ever[offset] = row.name
            answers.append(offset)
        return answers, refused

    def _resolve(self, unique: str, policy: int, place: int) -> tuple[str, str | None] | None:
        """Decide whether a new message with this unique key is stored.

        Return None if the new message is stored; a message that it replaces is removed. Otherwise return the message
        that keeps the key, and its state if the new message is rejected (None: ignored)."""
        key = self.keys.get(unique)
        if key is None or key.state == "cancelled" or (key.until is not None and key.until <= self.now):
            return None
        is_there = self.messages[key.name].offset > self.trimmed or self.is_kept(key.name)
        is_pending, waits, refusal = self.claim(key.name) if is_there else (False, False, None)
        pending = "ready" if self.messages[key.name].at <= self.now else "delayed"
        state = (refusal or ("waiting" if waits else pending)) if is_there else "delivered"
        stored = [(place, "stored", state)] if policy == c.REPLACE else []
        if key.state == "attempted" and not is_pending:
            self._passed(unique, key)
            if unique not in self.keys:
                self.outcomes += stored
                return None
        is_settled = not (is_pending or waits or refusal in ("leased", "waiting"))
        if is_settled and (key.state == "held" or policy == c.REPLACE):
            self.outcomes += stored
            return None
        if policy == c.IGNORE:
            self.outcomes.append((place, "ignored", state))
            return key.name, None
        if policy == c.REJECT:
            return key.name, pending if key.state == "held" else "delivered"
        if not is_settled and (refusal is None or (key.state == "held" and refusal == "acked")):
            self.outcomes.append((place, "replaced", self.messages[key.name].id))
            self.remove(key.name, "removed")
            return None
        return key.name, state

    def _passed(self, unique: str, key: Key) -> None:
        """Note that every group has passed the message of this key."""
        key.state, key.until = "delivered", self.now + self.settings["dedup_window_ms"]
        if key.until <= self.now:
            del self.keys[unique]

    def named(self, unique: str) -> str | None:
        """Return the message that has this unique key; None if the key is unused or forgotten."""
        key = self.keys.get(unique)
        return None if key is None or (key.until is not None and key.until <= self.now) else key.name

    def delivered(self, group: Group, name: str) -> None:
        """Record an attempt of a group at the message."""
        unique = self.messages[name].unique
        key = self.keys.get(unique) if unique is not None else None
        if key is None or key.name != name:
            return
        if key.state in ("held", "attempted"):
            others = [other for other in self.groups.values() if other is not group]
            if any(self.pending_in(other, name) for other in others):
                key.state = "attempted"
            else:
                self._passed(str(unique), key)

    def remove(self, name: str, how: str) -> None:
        message = self.messages[name]
        if message.offset <= self.trimmed:
            self.ghosts.append(message.at)
        message.gone, message.gone_at = how, self.now
        self._take_out(name)
        key = self.keys.get(message.unique) if message.unique is not None else None
        is_named = key is not None and key.name == name and (key.until is None or key.until > self.now)
        if key is not None and is_named and key.state in ("held", "attempted", "delivered"):
            key.state, key.until = "cancelled", self.now + CANCEL_MEMORY

    def move(self, name: str, to: int, place: int) -> bytes:
        message = self.messages[name]
        if self.claim(name)[1]:
            return self._delay(message, to)
        if message.offset <= self.trimmed:
            self.ghosts.append(message.at)
        self._take_out(name)
        message.at = max(to, self.floor)
        message.offset = message.row = offset_of(message.at, self.index, place)
        message.moves += 1
        self.ever[message.offset] = name
        return message.offset

    def _delay(self, message: Message, to: int) -> bytes:
        """Delay a waiting message."""
        for group in self.groups.values():
            held = group.held[message.name]
            held.due, held.seq = max(to, self.now, message.at), self.next_seq()
            held.made, held.spilled = (self.index,), False
        return message.offset

    def refusals(self, name: str, *, moved: bool = False) -> list[list[Any]]:
        """Return the possible rejections of a cancel or a move; [] if it succeeds."""
        message = self.messages[name]
        gone = ("too_late", "gone")
        if message.gone is not None:
            again = ("cancelled", message.id)
            if message.gone == "cancelled" and message.gone_at + CANCEL_MEMORY > self.now:
                return [again]
            return [again, gone, ("not_found", None)]
        if message.offset > self.trimmed or self.is_kept(name):
            is_pending, waits, refusal = self.claim(name)
            if refusal is None and moved and is_pending and waits:
                refusal = "waiting"
            return [] if refusal is None else [("too_late", refusal)]
        states = [group.held[name].state for group in self.groups.values() if name in group.held]
        held = "leased" if "leased" in states or "waiting" in states else "dead" if "dead" in states else "gone"
        # Some time after a moved message is gone, its former offsets are forgotten.
        return [("too_late", held), *([("not_found", None)] if message.moves and held == "gone" else [])]

    # -- observations ---------------------------------------------------------------------------------------------

    def seen_dead(self, group: Group, found: dict[bytes, int]) -> int:
        """Check that new dead messages (offset -> time of death) died of their ttl. Return their number."""
        seen = 0
        for offset, dead_at in found.items():
            name = self.ever[offset]
            held = group.held.get(name)
            if offset in group.stale or (held is not None and held.state == "dead"):
                continue
            expires = self.expires(name, held)
            assert expires is not None and expires <= dead_at <= self.now, f"{name} died before its ttl passed"
            assert held is None or held.state in ("waiting", "blocked"), f"{name} died while it was {held}"
            assert held is not None or self.messages[name].offset >= group.start, f"{name} was acked, and died"
            if held is None:
                assert self.ahead_of(group)[0].name == name, f"{name} died before earlier messages did"
                group.start = self.messages[name].offset + b"\0"
            assert not self.drops(group), f"{name} died, and {group.name} drops expired messages"
            self.bury(group, name, "expired", held or Held(""), held.error if held else None, dead_at)
            seen += 1
        return seen

    def seen_dropped(self, group: Group, cursor: bytes, found: set[bytes]) -> int:
        """Check that the messages that a group no longer has have expired, and drop them. Return their number.

        `found`: offsets of the messages that are leased, wait, are blocked or dead. `cursor`: last offset passed."""
        seen = 0
        if not self.drops(group):
            return seen
        for name in self.by_offset(group.of("waiting", "blocked")):
            if self.messages[name].offset not in found:
                self._drop(group, name, group.held[name])
                seen += 1
        for message in self.ahead_of(group):
            if message.offset > cursor:
                break
            if message.offset not in found:
                group.start = message.offset + b"\0"
                self._drop(group, message.name, Held(""))
                seen += 1
        return seen

    def drops(self, group: Group) -> bool:
        """Return whether a group drops expired messages."""
        return bool(group.settings.get("on_expiry", self.settings.get("on_expiry")) == "drop")

    def end_expired(self, group: Group, name: str, was: Held, error: str | None) -> None:
        """End a message whose ttl has passed."""
        if self.drops(group):
            self._drop(group, name, was)
        else:
            self.bury(group, name, "expired", was, error, self.now)

    def _drop(self, group: Group, name: str, was: Held) -> None:
        assert self.doomed(name, was), f"{name} was dropped before its ttl passed"
        if was.state in ("", "blocked"):
            self.delivered(group, name)
        group.held.pop(name, None)
        group.dropped += 1

    def bury(self, group: Group, name: str, reason: str, was: Held, error: str | None, at: int) -> None:
        if was.state in ("", "blocked"):
            self.delivered(group, name)
        attempt = 0 if was.state == "blocked" else was.attempt
        group.held[name] = Held(
            "dead", attempt, reason=reason, error=error, dead_at=at, history=was.history, immortal=was.immortal,
            lives=was.lives,
        )  # fmt: skip

    def seen_trimmed(self, trimmed: bytes) -> None:
        """Check that all messages up to an offset may be trimmed, and trim them."""
        assert trimmed >= self.trimmed
        for message in self.in_log():
            if message.offset <= trimmed:
                self._may_go(message)
        self.trimmed = trimmed

    def seen_keys(self, found: dict[str, tuple[int, bytes, int | None]]) -> None:
        """Compare the unique keys: (state, id, when it is forgotten).

        The key of a trimmed message is forgotten some time after the last group has leased the message."""
        for unique, key in list(self.keys.items()):
            if key.until is not None and key.until <= self.now:
                continue
            message = self.messages[key.name]
            state, message_id, until = found.get(unique, (-1, b"", None))
            words = {"held": 0, "delivered": 1, "cancelled": 2, "attempted": 3}
            if (state, message_id, until) == (words[key.state], message.id, key.until):
                continue
            is_pending = any(self.pending_in(group, key.name) for group in self.groups.values())
            assert message.offset <= self.trimmed and not is_pending, (
                unique,
                key,
                found.get(unique),
            )
            if key.state == "attempted":
                self._passed(unique, key)
                assert unique in found or unique not in self.keys
                assert unique not in found or found[unique] == (1, message.id, key.until)
            else:
                assert key.state == "held" and unique not in found, (unique, key, found)
                del self.keys[unique]

    def seen_copied(self, group: Group, found: set[bytes]) -> None:
        """Check which messages the group has copied to its own rows. `found`: the offsets of the copies."""
        for name, held in group.of("leased", "waiting", "blocked").items():
            is_copied = self.messages[name].offset in found
            since = self.messages[name].at if held.state == "blocked" else held.since
            assert is_copied or not held.copied, f"{name} was copied to a row of the group, and the copy is missing"
            if is_copied and not held.copied:
                assert held.immortal or since + PIN <= self.now or held.state != "blocked", (
                    f"{name} was copied too early"
                )
            held.copied = is_copied

    def _may_go(self, message: Message) -> None:
        settings = self.settings
        if settings["delete_on_ack"]:
            assert self.groups, f"{message.name} was trimmed without any group"
        else:
            kept = settings["retain_ms"]
            assert kept is not None and message.at + kept <= self.now, f"{message.name} was trimmed too early"
        for group in self.groups.values():
            held = group.held.get(message.name)
            if held is not None and held.state == "blocked" and held.copied:
                continue
            assert not self.pending_in(group, message.name), f"{message.name} was trimmed, unread by {group.name}"
            if held is not None and held.state != "dead":
                assert held.state in ("leased", "waiting"), f"{message.name} was trimmed while {held.state}"
        done_at = self.now if message.done_at is None else message.done_at
        assert not settings["delete_on_ack"] or done_at + settings["retention_ms"] <= self.now, (
            f"{message.name} was trimmed only {self.now - done_at} ms after all groups were done with it"
        )

    def watch_done(self) -> None:
        """Note the messages that all groups are done with. Call it after each entry."""
        for message in self.in_log():
            if message.done_at is None and self.is_done(message.name):
                message.done_at = self.now

    def is_done(self, name: str) -> bool:
        """Return whether all groups are done with the log row of the message. A group with its own copy is done."""
        for group in self.groups.values():
            held = group.held.get(name)
            is_copied = held is not None and self._is_copied(name, held)
            if self.pending_in(group, name) and not (is_copied and held is not None and held.state == "blocked"):
                return False
            if held is not None and held.state in ("leased", "waiting") and not is_copied:
                return False
        return bool(self.groups)

    def _is_copied(self, name: str, held: Held) -> bool:
        if held.state == "blocked":
            return held.copied or self.messages[name].at + PIN <= self.now
        return held.immortal or held.copied or held.since + PIN <= self.now

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

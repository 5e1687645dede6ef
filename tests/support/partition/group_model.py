"""Continue the model of a timer partition: groups with their leases, and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.model.retries import backoff_record
from sandq.partition import commands as c
from tests.support.partition.bench import T
from tests.support.partition.model import Model
from tests.support.partition.model_types import (
    AHEAD_MOST,
    HISTORY,
    Attempt,
    Group,
    Held,
    History,
    Lease,
    Lives,
    Taken,
    offset_of,
)

Offsets = set[bytes]


@dataclass
class Job:
    kind: str
    arguments: dict[str, Any]
    index: int
    started: int
    position: bytes = b""
    matched: int = 0
    done: int = 0
    too_late: int = 0
    state: str = "running"
    group: Group | None = None

    @property
    def counts(self) -> tuple[str, int, int, int]:
        return self.state, self.matched, self.done, self.too_late


class GroupModel(Model):
    def __init__(self, settings: dict[str, Any], step: int) -> None:
        """`step`: number of messages that a job handles at a time."""
        super().__init__(settings)
        self.step = step
        self.jobs: dict[bytes, Job] = {}
        self.most_in_flight: dict[str, int] = {}
        """Limit of leased messages, by group, for groups with a limit. A group may be listed before it exists."""

    # -- groups ---------------------------------------------------------------------------------------------------

    def _start(self, to: c.Position) -> bytes:
        """Return the first offset to deliver. All messages that are stored later have higher offsets."""
        latest = offset_of(self.floor, self.index, 0)
        if to == "earliest":
            return bytes(16)
        if to == "latest":
            return latest
        return min(to if isinstance(to, bytes) else offset_of(int(to) - T, 0, 0), latest)

    def open(self, name: str, to: c.Position) -> None:
        if name not in self.groups:
            self.groups[name] = Group(name, max(self._start(to), self.trimmed + b"\0"), self.now, self.now)
        self.groups[name].touched = self.now

    def seek(self, name: str, to: c.Position) -> bool:
        """Start a seek. Return False if one is in progress."""
        group = self.groups[name]
        if group.seek_from is not None:
            return False
        asked = self._start(to)
        self._revoke(group)
        again = []
        for message in self.by_offset(group.of("leased", "waiting", "blocked")):
            if group.held[message].spilled:
                continue  # the job decides
            if group.held[message].state == "blocked" and asked <= self.messages[message].offset <= self.trimmed:
                continue  # the message stays blocked, after the messages that are delivered again
            held = group.held.pop(message)
            if asked <= self.messages[message].offset <= self.trimmed:
                again.append((message, held.immortal, held.lives))
        group.start = max(asked, self.trimmed + b"\0")
        self._again(group, again)
        if group.of("dead") or any(held.spilled for held in group.held.values()):
            group.seek_from, group.sought = asked, b""
        return True

    def _again(self, group: Group, messages: list[tuple[str, bool, Lives]]) -> None:
        """Make messages ready for a first attempt, from the group's own copies."""
        seqs: dict[Any, int] = {}
        for name, immortal, lives in messages:
            rules = self.messages[name].rules
            seq = seqs[rules] = seqs.get(rules) or self.next_seq()
            again = Held("waiting", due=self.now, seq=seq, immortal=immortal, since=self.now, lives=lives)
            group.held[name] = again

    def _redriven(self, group: Group, name: str) -> tuple[str, bool, Lives]:
        """Remove a dead message from its group and return what a redrive needs."""
        dead = group.held.pop(name)
        return name, True, dead.with_this_life(self.now)

    def _revoke(self, group: Group) -> None:
        for lease in self.leases.values():
            if lease.group == group.name and lease.live:
                lease.left.update(lease.live)
                lease.revoked = True

    def drop(self, name: str) -> None:
        self._revoke(self.groups[name])
        del self.groups[name]

    def drop_idle(self) -> None:
        ttl = self.settings["group_ttl_ms"]
        for name, group in list(self.groups.items()):
            if ttl is not None and group.touched + ttl <= self.now:
                if group.paused:
                    group.touched = self.now
                else:
                    self.drop(name)

    def remove_dead(self, limit: int, pause: int) -> None:
        """Remove dead messages that exceed `dead_retention` or `max_dead_letters`, up to `limit`."""
        kept, most = self.settings.get("dead_retention_ms"), self.settings.get("max_dead_letters")
        for group in self.groups.values():
            dead = sorted((held.dead_at, self.messages[name].offset, name) for name, held in group.of("dead").items())
            if limit <= 0 or group.seek_from is not None or not dead:
                continue
            excess = 0 if most is None else len(dead) - most
            over = [
                name
                for at, (dead_at, _, name) in enumerate(dead)
                if at < excess or (kept is not None and dead_at + kept <= self.now)
            ]
            if not over or (group.removed_at is not None and group.removed_at + pause > self.now):
                continue
            for name in over[:limit]:
                del group.held[name]
            group.removed += len(over[:limit])
            if len(over) <= limit:
                group.removed_at = self.now
            limit -= len(over[:limit])

    def setting(self, group: Group, name: str) -> Any:
        return group.settings.get(name, self.settings[name])

    # -- leases ---------------------------------------------------------------------------------------------------

    def lease(self, name: str, horizon: int, grants: list[tuple[str, int]]) -> list[Taken]:
        """Return the messages of each grant, in order: waiting ones, unblocked ones, and the next ones of the log."""
        group = self.groups[name]
        group.touched = self.now
        if group.paused or group.seek_from is not None:
            return []
        horizon = min(horizon, self.now + AHEAD_MOST)
        taken: list[Taken] = []
        in_flight, most = len(group.of("leased")), self.most_in_flight.get(name, 1 << 30)
        if in_flight < most:
            spilled = [n for n, held in group.held.items() if held.spilled]
            self.recall(group, [n for n in spilled if self.recalled_at(n, group.held[n]) <= horizon])
        for number, (_, asked) in enumerate(grants):
            limit = min(asked, most - in_flight - len(taken))
            if limit <= 0:
                continue
            mine = [(n, group.held[n].attempt + 1) for n in self._waiting(group, horizon, limit)]
            for message, _ in mine:
                group.held[message].state = "leased"
            mine += [(n, 1) for n in self._blocked(group, horizon, limit - len(mine))]
            mine += [(n, 1) for n in self._log(group, horizon, limit - len(mine))]
            taken += [Taken(number, message, attempt) for message, attempt in mine]
        return taken

    def _waiting(self, group: Group, horizon: int, limit: int) -> list[str]:
        """Return waiting messages that are due.

        If messages began to wait together, their expiry is checked together."""
        entries: dict[tuple[int, int], list[str]] = {}
        for name in self.by_offset(group.of("waiting")):
            held = group.held[name]
            if held.due <= horizon:
                entries.setdefault((held.due, held.seq), []).append(name)
        taken: list[str] = []
        for (due, _), names in sorted(entries.items()):
            ahead = due > self.now and any(self._dies_first(name, group.held[name]) for name in names)
            if len(taken) >= limit or ahead:
                break
            for name in names:
                held = group.held[name]
                if self.doomed(name, held):
                    self.end_expired(group, name, held, held.error)
                else:
                    taken.append(name)
        return taken[:limit]

    def _blocked(self, group: Group, horizon: int, limit: int) -> list[str]:
        taken: list[str] = []
        while len(taken) < limit and (free := self.free(group)) and self.messages[free[0]].at <= horizon:
            if self.doomed(free[0]):
                self.end_expired(group, free[0], group.held[free[0]], None)
            else:
                self._take(group, free[0])
                taken.append(free[0])
        return taken

    def _log(self, group: Group, horizon: int, limit: int) -> list[str]:
        taken: list[str] = []
        for message in self.ahead_of(group):
            if len(taken) == limit or message.at > horizon:
                break
            group.start = message.offset + b"\0"
            self.floor = max(self.floor, message.at)
            if self.doomed(message.name):
                self.end_expired(group, message.name, Held(""), None)
            elif self.is_held_up(group, message.key):
                group.held[message.name] = Held("blocked")
            else:
                self._take(group, message.name)
                taken.append(message.name)
        return taken

    def _take(self, group: Group, name: str) -> None:
        self.delivered(group, name)
        group.held[name] = Held("leased", since=self.now)

    def granted(self, lease: Lease) -> None:
        """Store one lease of the taken messages."""
        self.leases[lease.token] = lease
        together = [self.groups[lease.group].held[name] for name in lease.names]
        (lease.crashes,) = {held.crashes for held in together}
        last = self._last(lease)
        if lease.handlers and last is not None and lease.attempt >= last:
            lease.crashes = max(lease.crashes, 1)
        since = min(held.since for held in together)
        for held in together:
            held.state, held.attempt, held.token, held.since = "leased", lease.attempt, lease.token, since

    # -- settling -------------------------------------------------------------------------------------------------

    def ack(self, token: int, what: Offsets | None) -> Offsets | str | None:
        """Return None if all messages are settled, "all" if the whole lease is lost, or else the lost offsets."""
        lease = self.leases.get(token)
        if lease is None:
            return "all"
        names = self._named(lease, what)
        for name in names & set(lease.live):
            lease.acked.add(name)
            del self.groups[lease.group].held[name]
        if what is None and lease.acked and not lease.revoked:
            return None
        return self._lost(lease, names & lease.left, what)

    def nack(
        self,
        token: int,
        what: Offsets | None,
        delay: int | None,
        error: str | None,
        begun: bool = True,
        end: int = RETRY,
    ) -> Offsets | str | None:
        lease = self.leases.get(token)
        if lease is None:
            return "all"
        names = self._named(lease, what)
        fresh = names & set(lease.live)
        if fresh and begun and end == DEAD:
            self._bury(lease, fresh, "rejected", error)
        elif fresh and begun and end == SNOOZE and self._may_snooze(lease, fresh):
            self._snooze(lease, fresh, delay, error)
        elif fresh and begun:
            self._give_back(lease, fresh, delay, "nacked", error)
        elif fresh:
            self._wait(lease, fresh, self.now + (delay or 0), lease.attempt - 1, error, None, lease.crashes)
        return self._lost(lease, names - fresh, what)

    def _named(self, lease: Lease, what: Offsets | None) -> set[str]:
        return {name for name, offset in lease.offsets.items() if what is None or offset in what}

    def _lost(self, lease: Lease, names: set[str], what: Offsets | None) -> Offsets | str | None:
        if what is None:
            return "all" if len(names) == len(lease.names) else {lease.offsets[name] for name in names} or None
        foreign = what - set(lease.offsets.values())
        return {lease.offsets[name] for name in names} | foreign or None

    def extend(self, token: int, ms: int, begun: Offsets | None = None) -> int | None:
        lease = self.leases.get(token)
        if lease is None or not lease.live:
            return None
        lease.begun |= self._named(lease, begun or set()) & set(lease.live)
        lease.deadline = self.now + ms
        return T + lease.deadline

    def expire(self) -> int:
        """Return the number of messages that were given back."""
        count = 0
        due = [lease for lease in self.leases.values() if lease.live and lease.deadline <= self.now]
        for lease in sorted(due, key=lambda lease: (lease.deadline, lease.token)):
            count += len(lease.live)
            lease.revoked = True
            charged, crashes = lease.charged, 0
            if lease.handlers:
                crashes = 1 if lease.crashes >= 5 else lease.crashes + 1
            self._wait(lease, set(lease.live) - charged, self.now, lease.attempt - 1, None, None, crashes)
            self._give_back(lease, charged, None, "lease_expired", None, crashes)
        return count

    def release(self, group: str, consumer: str) -> int:
        count = 0
        held = [lease for lease in self.leases.values() if (lease.group, lease.consumer) == (group, consumer)]
        for lease in sorted(held, key=lambda lease: lease.token):
            if lease.live:
                count += len(lease.live)
                lease.revoked = True
                self._wait(lease, set(lease.live), self.now, lease.attempt - 1, None, None, lease.crashes)
        return count

    def reclaim(self, group: str, consumer: str, epoch: int, tokens: list[int], ms: int) -> int:
        """Renew the leases that a consumer held under lower epochs, with these tokens. Return their number."""
        held = [lease for lease in self.leases.values() if (lease.group, lease.consumer) == (group, consumer)]
        stale = sorted([lease for lease in held if lease.live and lease.epoch < epoch], key=lambda lease: lease.token)
        for old, token in zip(stale, tokens, strict=True):
            names = old.live
            offsets = {name: old.offsets[name] for name in names}
            old.left.update(names)
            old.revoked = True
            renewed = Lease(group, consumer, token, old.attempt, names, offsets, self.now, self.now + ms, epoch=epoch)
            renewed.handlers = old.handlers
            for name in names:
                held = self.groups[group].held[name]
                held.crashes = max(held.crashes, 1) if old.handlers else 0
            self.granted(renewed)
        return len(stale)

    def _give_back(
        self, lease: Lease, names: set[str], delay: int | None, reason: str, error: str | None, crashes: int = 0
    ) -> None:
        last = self._last(lease)
        if last is not None and lease.attempt >= last:
            self._bury(lease, names, reason, error)
            return
        if delay is None:
            delay = self._back_off(lease, lease.attempt)
        self._wait(lease, names, self.now + delay, lease.attempt, error, self._this(lease, reason, error), crashes)

    def _this(self, lease: Lease, reason: str, error: str | None) -> Attempt:
        return (lease.attempt, lease.consumer, T + lease.leased_at, T + self.now, reason, error)

    def _bury(self, lease: Lease, names: set[str], reason: str, error: str | None) -> None:
        group = self.groups[lease.group]
        for name in names:
            held = group.held[name]
            held.history = (*held.history, self._this(lease, reason, error))[-HISTORY:]
            self.bury(group, name, reason, held, error, self.now)
        lease.left |= names

    def _may_snooze(self, lease: Lease, names: set[str]) -> bool:
        group = self.groups[lease.group]
        most = group.settings.get("max_snoozes", self.settings.get("max_snoozes"))
        (snoozes,) = {group.held[name].snoozes for name in names}
        return most is None or snoozes < most

    def _snooze(self, lease: Lease, names: set[str], delay: int | None, error: str | None) -> None:
        group = self.groups[lease.group]
        (snoozes,) = {group.held[name].snoozes for name in names}
        if delay is None:
            delay = self._back_off(lease, lease.attempt + snoozes)
        for name in names:
            held = group.held[name]
            held.snoozes += 1
            if held.history and held.history[-1][0] == lease.attempt and held.history[-1][4] == "snoozed":
                held.history = held.history[:-1]
        this = self._this(lease, "snoozed", error)
        self._wait(lease, names, self.now + delay, lease.attempt - 1, error, this)

    def _rules(self, lease: Lease) -> tuple[int | None, bytes | None]:
        """Return the own rules of the messages of a lease, which all have the same."""
        (rules,) = {self.messages[name].rules for name in lease.names}
        return rules

    def _last(self, lease: Lease) -> int | None:
        """Return the number of attempts after which the messages of a lease die."""
        own = self._rules(lease)[0]
        return self.setting(self.groups[lease.group], "max_attempts") if own is None else own or None

    def _back_off(self, lease: Lease, attempt: int) -> int:
        own = self._rules(lease)[1]
        backoff = self.setting(self.groups[lease.group], "backoff") if own is None else backoff_record(own)
        grown = (backoff["factor_permille"] // 1000) ** (attempt - 1)
        factor = {"none": 0, "fixed": 1, "linear": attempt, "exponential": grown}[backoff["kind"]]
        return int(min(backoff["first_ms"] * factor, backoff["cap_ms"]))

    def _wait(
        self,
        lease: Lease,
        names: set[str],
        due: int,
        attempt: int,
        error: str | None,
        this: Any,
        crashes: int = 0,
    ) -> None:
        group = self.groups[lease.group]
        batches: dict[tuple[History, int], int] = {}
        histories: dict[History, list[str]] = {}
        for name in self.by_offset(names):
            histories.setdefault(group.held[name].history, []).append(name)
        for history, together in histories.items():
            for name in together:
                held = group.held[name]
                held.due = max(due, self.messages[name].at)
                held.state, held.attempt, held.error, held.token = "waiting", attempt, error, 0
                held.crashes, held.made = crashes, (self.index, due)
                held.history = (*history, this)[-HISTORY:] if this else history
                held.seq = batches.setdefault((history, held.due), 0) or self.next_seq()
                batches[history, held.due] = held.seq
        lease.left |= names

    # -- jobs -----------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> None:
        """Run one step of a job."""
        if job.kind in ("cancel", "move"):
            self._run_pending(job)
        else:
            self._run_dead(job)

    def _run_pending(self, job: Job) -> None:
        arguments = job.arguments
        first, last = arguments["from_ms"] - T, arguments["until_ms"] - T
        found = [m for m in self.in_log() if m.offset > job.position and first <= m.at < last][: self.step]
        if not found:
            job.state = "done"
            return
        job.position = found[-1].offset
        used = 0
        for message in found:
            prefix = arguments["key_prefix"]
            if message.index >= job.index:
                continue
            if prefix is not None and not (message.key is not None and message.key.encode().startswith(prefix)):
                continue
            if not self.is_pending(message.name):
                job.too_late += 1
                continue
            job.matched += 1
            if arguments["dry_run"]:
                continue
            job.done += 1
            if job.kind == "cancel":
                self.remove(message.name, "removed")
            else:
                shift = arguments.get("shift_ms")
                self.move(message.name, arguments["to_ms"] - T if shift is None else message.at + shift, used)
                used += 1

    def _run_dead(self, job: Job) -> None:
        arguments = job.arguments
        group = self.groups.get(arguments["group"])
        if group is None or group is not job.group:
            job.state = "done"
            return
        if group.seek_from is not None:
            return
        limit: int = self.step
        if arguments.get("rate") is not None and not arguments["dry_run"]:
            limit = min(arguments["rate"] * (self.now - job.started) // 1000 + 1 - job.done, limit)
        if limit <= 0:
            return
        found = [n for n in self.by_offset(group.of("dead")) if self.messages[n].offset > job.position][: self.step]
        if not found:
            job.state = "done"
            return
        chosen: list[str] = []
        for name in found:
            job.position = self.messages[name].offset
            if (
                arguments["reason"] in (None, group.held[name].reason)
                and arguments["from_ms"] <= T + group.held[name].dead_at < arguments["until_ms"]
                and group.held[name].dead_at <= job.started
            ):
                chosen.append(name)
                if len(chosen) == limit:
                    break
        job.matched += len(chosen)
        if arguments["dry_run"] or not chosen:
            return
        job.done += len(chosen)
        again = [self._redriven(group, name) for name in chosen]
        if job.kind == "redrive":
            self._again(group, again)

    def each_dead(self, group: Group, ids: list[bytes], is_purge: bool) -> list[list[Any]] | None:
        """Return the outcome of each id; None while a seek is in progress."""
        if group.seek_from is not None:
            return None
        by_id = {message.id: message for message in self.messages.values()}
        outcomes: list[list[Any]] = []
        chosen: list[str] = []
        for one in ids:
            held = group.held.get(by_id[one].name)
            if held is None or held.state == "blocked":
                outcomes.append(("not_found", None))
            elif held.state == "dead":
                chosen.append(by_id[one].name)
                outcomes.append(("purged" if is_purge else "redriven", one))
            else:
                ready = held.state == "waiting" and held.due <= self.now
                outcomes.append(("not_dead", "ready" if ready else held.state))
        again = [self._redriven(group, name) for name in self.by_offset(set(chosen))]
        if again and not is_purge:
            self._again(group, again)
        return outcomes

    def run_seek(self, name: str, position: bytes) -> bytes:
        """Run one step of a seek: redeliver dead messages after `position`. Return the new position."""
        group = self.groups[name]
        assert group.seek_from is not None
        if spilled := self._run_seek_spilled(group, group.seek_from):
            group.sought = spilled[-1]
            return position
        found = [o for o in sorted(self.dead_of(group)) if position < o >= group.seek_from][: self.step]
        if not found:
            group.seek_from = None
            return position
        again = [self.ever[offset] for offset in found if group.stale.pop(offset, None) is None]
        redriven = [self._redriven(group, name) for name in again]
        copies = [one for one in redriven if self.messages[one[0]].offset < group.start]
        if copies:
            self._again(group, copies)
        return found[-1]

    def _run_seek_spilled(self, group: Group, asked: bytes) -> list[bytes]:
        """Decide about the next spilled messages of a group after a seek. Return their offsets."""
        spilled = self.by_offset([name for name, held in group.held.items() if held.spilled])
        found = [name for name in spilled if self.messages[name].offset > group.sought][: self.step]
        for name in found:
            message, held = self.messages[name], group.held[name]
            if message.offset < asked or message.offset > self.trimmed:
                del group.held[name]
                continue
            again = {"immortal": held.immortal, "lives": held.lives, "copied": True, "spilled": True}
            due = max(self.now, message.at)
            group.held[name] = Held("waiting", due=due, since=self.now, made=(self.index, due), **again)
        return [self.messages[name].offset for name in found]

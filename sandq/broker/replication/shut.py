"""Describe a replica that is shut because it could not apply an entry (ADR 46).

A shut replica applies nothing more, and answers requests with the reason. A shut replica still votes, and still accepts
a limited number of entries. A shut replica is opened again at the next start or from a snapshot. If its group decides
to skip the failed entry (SKIP), the replica is opened, too.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from sandq.model.errors import ClosedError, Corruption, StartupError, StorageFailed
from sandq.storage.level_check import StoresDamaged

ERROR_CHARS: Final = 500
"""Maximum length of an error's text that is kept and shown, in characters."""
TRACEBACK_CHARS: Final = 8000
"""Maximum length of the traceback that is logged, in characters."""
ENDLESS_CPU_S: Final = 60.0
"""CPU time in s without progress after which an entry is given up and its replica is shut.

Elapsed time does not count: an entry that waits for a slow disk uses no CPU time, and continues once the disk
answers."""
DESCRIBED_CHARS: Final = 2000
"""Maximum length of a command's description, in characters."""
SHOWN_BYTES, SHOWN_ITEMS = 32, 8
"""Maximum number of bytes of a value, and of items of a list, that a description shows."""


class LogGap(Exception):
    """An entry was submitted before its predecessor was applied. This is a bug of sandq."""


class AppliedSkipped(Exception):
    """The group has skipped an entry that this replica has applied. So the state of this replica differs from the state
    of other replicas."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} is skipped by the group, and this replica has applied it")


class EndlessEntry(BaseException):
    """An entry used too much CPU time without progress: it most likely never ends.

    This class is not an `Exception`, so that no handler in `apply` converts the error to a result. Other replicas may
    finish the entry, and would then have a different result.
    """

    def __init__(self) -> None:
        super().__init__(f"it has used {ENDLESS_CPU_S:g} s of CPU time without progress")


class UnknownLevel(StartupError):
    """This version does not support the feature level of the metadata."""


STOPS_NODE: Final = (StorageFailed, ClosedError, StoresDamaged, LogGap, UnknownLevel)
"""Errors that concern the whole node instead of a single group.

After such an error the node stops. After a failed write to the stores, its process goes on, but applies nothing."""


class Step(StrEnum):
    """The step at which a replica failed."""

    LOAD = "load"
    """The rows could not be read when the replica was opened."""
    DECODE = "decode"
    """The entry's bytes could not be read."""
    APPLY = "apply"
    """A command of the entry raised an unexpected error."""
    STATUS = "status"
    """The status after the entry could not be computed."""
    DRAIN = "drain"
    """The changed rows could not be encoded."""
    SKIPPED = "skipped"
    """The group decided to skip an entry that this replica has applied. Only a snapshot can open the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyFailure:
    """Why a replica is shut, and at which entry and command it failed."""

    group: int
    step: Step
    index: int | None
    """Raft index of the entry that failed.

    None if the changes of all applied entries were already in the rows, for example when the replica was loaded."""
    rows_index: int
    """Raft index of the last entry whose changes are in the rows."""
    error: str
    """Class and text of the error, at most `ERROR_CHARS`."""
    command: int | None = None
    """Position, in its entry, of the command that failed; None if the command is not known."""
    kind: str | None = None
    """Class name of the failed command."""
    is_exact: bool = True
    """True if `index` is the entry at fault.

    False if the failed step covered several entries: then `index` is the last of these entries. The replica is loaded
    again, and then checked after each entry, to find the entry at fault."""
    trace: str = field(default="", compare=False, repr=False)

    @classmethod
    def of(
        cls,
        error: BaseException,
        *,
        group: int,
        step: Step,
        index: int | None,
        rows_index: int,
        command: int | None = None,
        kind: str | None = None,
        is_exact: bool = True,
    ) -> ApplyFailure:
        """Return the failure for an error that was caught."""
        # An entry that cannot be decoded fails with Corruption, before any of its commands is known.
        if step is Step.APPLY and isinstance(error, Corruption) and command is None:
            step = Step.DECODE
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
        trace = "".join(traceback.format_exception(error, limit=-20))[-TRACEBACK_CHARS:]
        return cls(
            group=group,
            step=step,
            index=index,
            rows_index=rows_index,
            error=text,
            command=command,
            kind=kind,
            is_exact=is_exact,
            trace=trace,
        )

    @property
    def where(self) -> str:
        """A readable description of the entry and command that failed."""
        if self.index is None:
            return "its rows"
        found = f"entry {self.index}"
        if self.command is not None:
            found += f", command {self.command}"
        return f"{found} ({self.kind})" if self.kind else found

    @property
    def reason(self) -> str:
        """The error message for clients."""
        return (
            f"this replica is shut: it could not {_VERBS[self.step]} {self.where}: {self.error}. An operator must look "
            "at it: `sandctl partition shut` lists what is shut and what to do"
        )


_VERBS: Final = {
    Step.LOAD: "read",
    Step.DECODE: "decode",
    Step.APPLY: "apply",
    Step.STATUS: "sum up its state after",
    Step.DRAIN: "store",
    Step.SKIPPED: "continue with",
}


def describe(command: Any) -> str:
    """Return a command's class and fields in readable form.

    Long values are cut. A long byte string is shown by its length."""
    parts = [f"{each.name}={_shown(getattr(command, each.name))}" for each in fields(command)]
    return f"{type(command).__name__}({', '.join(parts)})"[:DESCRIBED_CHARS]


def _shown(value: Any) -> str:
    """Return a value in readable form, cut to the limits."""
    if isinstance(value, bytes):
        return value.hex() if len(value) <= SHOWN_BYTES else f"<{len(value)} bytes>"
    if isinstance(value, list | tuple):
        shown = [_shown(item) for item in value[:SHOWN_ITEMS]]
        return f"[{', '.join(shown)}{', ...' if len(value) > SHOWN_ITEMS else ''}]"
    if isinstance(value, dict):
        return (
            "{" + ", ".join([f"{key!r:.40}: {_shown(item)}" for key, item in list(value.items())[:SHOWN_ITEMS]]) + "}"
        )
    return f"{value!r:.200}"


def described(command_list: Sequence[Any], failed: int | None) -> str:
    """Return how many commands of each class an entry has, and all fields of the failed command.

    `failed`: position of the failed command; None if it is not known."""
    counts = Counter([type(command).__name__ for command in command_list])
    text = ", ".join([f"{count} {name}" for name, count in counts.items()])
    if failed is not None and failed < len(command_list):
        text += f"; failed: {describe(command_list[failed])}"
    return text

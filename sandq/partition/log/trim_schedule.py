"""Decides when the log is trimmed next."""

from __future__ import annotations

from sandq.partition.base.step import Step
from sandq.partition.shared_state import SharedState

SAMPLES = 16
"""Number of times per `retention` at which the offset below which all messages are done is recorded."""
LEAST_PAUSE_MS = 1000


class TrimSchedule:
    """Computes from events in a partition, and from its settings, when the next trim may find something to delete."""

    def __init__(self, shared: SharedState) -> None:
        self.due_ms: int | None = None
        """Time of the next trim, in ms. None: not before the next event."""
        self._shared = shared

    def note_settled(self, step: Step) -> None:
        """Schedule a trim soon, because groups may be done with more messages than before."""
        due_ms = step.now_ms + (self.pause_ms if self.keeps else 0)
        if self.trims and (self.due_ms is None or self.due_ms > due_ms):
            self.due_ms = due_ms

    def note_appended(self, step: Step) -> None:
        """Schedule a trim later: messages were added, so age or size limits may remove messages."""
        if self.keeps and not self._shared.settings["delete_on_ack"] and self.due_ms is None:
            self.due_ms = step.now_ms + self.pause_ms

    @property
    def trims(self) -> bool:
        """Whether anything is ever trimmed."""
        settings = self._shared.settings
        return bool(settings["delete_on_ack"]) or self.keeps

    @property
    def keeps(self) -> bool:
        """Whether settings keep messages for a time, or up to a size."""
        settings = self._shared.settings
        if settings["delete_on_ack"]:
            return bool(settings["retention_ms"])
        return settings["retain_ms"] is not None or settings["retain_bytes"] is not None

    @property
    def pause_ms(self) -> int:
        """Time in ms between two trims that no event causes."""
        settings = self._shared.settings
        kept_ms = settings["retention_ms"] if settings["delete_on_ack"] else settings["retain_ms"]
        return max(LEAST_PAUSE_MS, int(str(kept_ms or 0)) // SAMPLES)

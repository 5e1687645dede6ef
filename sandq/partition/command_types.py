"""Type numbers of the commands of a partition. PERSISTED."""

from __future__ import annotations

from enum import IntEnum


class CommandType(IntEnum):
    APPEND = 1
    LEASE = 2
    ACK = 3
    NACK = 4
    EXTEND = 5
    EXPIRE = 6
    RELEASE = 7
    OPEN_GROUP = 8
    UPKEEP = 9
    CLOCK = 10
    CONFIGURE = 11
    CANCEL = 12
    MOVE = 13
    SEEK = 14
    DROP_GROUP = 15
    CONFIGURE_GROUP = 16
    TOUCH = 17
    START_JOB = 18
    STOP_JOB = 19
    HOLD = 20
    RAISE_LEVEL = 21
    TAKE_DIGEST = 22
    CLOCK_RESET = 23
    PAUSE_GROUP = 24
    SHARE_LIMIT = 25
    ALLOW_LIMIT = 26
    REDRIVE_DEAD = 28
    PURGE_DEAD = 29
    PUT_SCHEDULES = 30
    FIRE_SCHEDULES = 31
    PAUSE_SCHEDULES = 32
    DELETE_SCHEDULES = 33
    TRIGGER_SCHEDULES = 34
    PLAN_SCHEDULES = 35
    OUTBOX_SENT = 40
    OUTBOX_REFUSED = 41
    ACK_THEN = 42
    RECLAIM = 43
    PAUSE_PART = 44
    PAUSE_BY_LEASE = 45
    PAUSE_LONGER = 46
    PAUSE_LIMIT = 47
    RESTORE_BEGIN = 50
    RESTORE_ROWS = 51
    RESTORE_END = 52
    SKIPPED = 60

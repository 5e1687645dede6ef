"""Example bodies in `/openapi.json`, by operation id. A test sends all of them."""

from __future__ import annotations

from typing import Any, Final

_TOKEN: Final = "1.0.1114112"
_OFFSET: Final = "01HN7K2B6R0000000001000000"
_MESSAGE: Final = {"json": {"order": 17}, "key": "customer-7", "delay": "2h"}
_SCHEDULE: Final = {"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin", "text": "stand-up"}

BODIES: Final[dict[str, dict[str, Any]]] = {
    "createBackup": {"topics": ["orders"]},
    "runSql": {"statement": "SELECT deliver_at, text FROM messages WHERE topic = 'orders' LIMIT 10"},
    "restoreBackup": {"topics": ["orders"], "prefix": "restored-"},
    "createTopic": {"name": "orders", "partitions": 6, "settings": {"lease": "30s", "max_attempts": 5}},
    "updateTopic": {"settings": {"retention": "1d"}},
    "produce": _MESSAGE,
    "produceTo": _MESSAGE,
    "updateMessage": {"json": {"order": 18}, "delay": "30m"},
    "moveMessages": {"unique_key_prefix": "reminder-", "shift": "1h"},
    "leaseMessages": {"max": 10, "wait": "10s"},
    "ackMessages": {"lease_token": _TOKEN},
    "nackMessages": {"lease_token": _TOKEN, "delay": "30s", "error": "503 from the bank"},
    "rejectMessages": {"lease_token": _TOKEN, "error": "410 gone"},
    "extendLeases": {"lease_token": _TOKEN, "lease": "1m"},
    "pauseByLease": {"lease_token": _TOKEN, "offset": _OFFSET, "part": "tenant", "for": "10m"},
    "updateGroup": {"settings": {"max_attempts": 20}},
    "limitGroup": {"max_in_flight": 100, "rate": "50/s"},
    "setLimit": {"rate": "90000/m", "unit": "tokens", "max_in_flight": 50},
    "setPush": {
        "url": "https://shop.example/hooks/orders",
        "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "request_timeout": "10s",
    },
    "pauseGroup": {"for": "10m"},
    "pauseLimit": {"for": "10m"},
    "resumeGroup": {},
    "seekGroup": {"to": "2026-01-31T08:00:00Z"},
    "redriveDeadLetters": {"reason": "nacked", "rate": 50},
    "purgeDeadLetters": {"until": "2026-01-31T08:00:00Z", "dry_run": True},
    "putKey": {"json": {"theme": "dark"}},
    "createSchedules": {"name": "stand-up", **_SCHEDULE},
    "updateSchedule": {"cron": "30 9 * * MON-FRI"},
    "previewSchedule": {"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin", "count": 3},
    "createToken": {"name": "billing", "grants": ["writer:billing.*"], "expires_in": "90d"},
    "rotateToken": {"expires_in": "90d"},
    "createIdentity": {"principal": "cert:till-7", "grants": ["writer:tills.*"]},
    "updateIdentity": {"add": ["read:reports.*"], "quota": {"requests_per_s": 100}},
    "putRole": {"grants": ["produce:pay.*", "reader:pay.*"]},
    "finalizeCluster": {"dry_run": True},
    "drainNode": {"undo": True},
    "setLogLevel": {"level": "debug", "for": "10m"},
    "transferPartition": {"topic": "orders", "partition": 0, "node": "node2"},
    "rebuildReplica": {"topic": "orders", "partition": 0, "node": "node2"},
    "resetClock": {"topic": "orders", "partition": 0},
}

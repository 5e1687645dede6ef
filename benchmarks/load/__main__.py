"""`python -m benchmarks.load PARENT_PID`: see the package."""

from __future__ import annotations

import gc
import json
import resource
import sys
from dataclasses import asdict

from benchmarks.load import (
    abuse,
    client,
    consume,
    due,
    keys,
    lateness,
    outage,
    pending,
    produce,
    ranked,
    schedules,
    small,
)
from benchmarks.load.work import Work
from demo.node import end_with_parent

WORKS: dict[str, Work] = {
    "produce": produce.closed,
    "produce_paced": produce.paced,
    "produce_many": produce.many,
    "consume": consume.consume,
    "consume_trimming": consume.trimming,
    "consume_paced": consume.paced,
    "outage": outage.outage,
    "consume_nack": consume.nack,
    "due": due.due,
    "lateness": lateness.lateness,
    "lateness_failover": lateness.failover,
    "pending_job": pending.job,
    "pending_trim": pending.trim,
    "pending_earliest": pending.earliest,
    "ranked_produce": ranked.produce,
    "ranked_consume": ranked.consume,
    "ranked_backlog": ranked.backlog,
    "ranked_change": ranked.change,
    "ranked_change_all": ranked.change_all,
    "schedules_create": schedules.create,
    "schedules_fire": schedules.fire,
    "kv_put": keys.put,
    "kv_get": keys.get,
    "kv_scan": keys.scan,
    "kv_client": keys.client,
    "kv_watch": keys.watch,
    "abuse": abuse.abuse,
    "victim": abuse.victim,
    "client_produce": client.produce,
    "client_consume": client.consume,
    "client_notice": client.notice,
    "small_produce": small.produce,
    "small_kv_get": small.kv_get,
    "small_kv_put": small.kv_put,
    "small_consume": small.consume,
    "small_post": small.post,
    "small_flood": small.flood,
    "small_wait": small.wait,
}


def main() -> None:
    end_with_parent(int(sys.argv[1]))
    spec = json.loads(sys.stdin.readline())
    ready = WORKS[spec.pop("do")](**spec)
    # Prepared frames are many objects, and none of them becomes garbage before the end.
    gc.collect()
    gc.freeze()
    print(json.dumps(ready.about), flush=True)
    began_s = float(sys.stdin.readline().split()[1])
    before_s = _cpu_s()
    done = ready.run(began_s)
    done.result.cpu_s = _cpu_s() - before_s
    done.result.latency = done.latency()
    print(json.dumps(asdict(done.result)), flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

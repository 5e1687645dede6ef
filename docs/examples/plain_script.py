"""The blocking client in a plain script: no event loop, no async.

It schedules three messages, moves one of them, and prints each when its time has come. With a broker on this machine:

    python docs/examples/plain_script.py [HOST:PORT]
"""

from __future__ import annotations

import sys
from contextlib import suppress

import sandq
from sandq.errors import TopicExists


def main(server: str) -> None:
    with sandq.sync.connect(server) as client:
        with suppress(TopicExists):
            client.admin.create_topic("kitchen")

        # To send many at once, use a producer. You can wait for one receipt, or for all of them.
        with client.producer("kitchen") as producer:
            tea = producer.send("tea is ready", delay="1s")
            producer.send("eggs are ready", delay="2s")
            producer.send("cake is ready", delay="30m", unique_key="cake")
            print("tea is message", tea.wait())

        # Until a consumer leases it, a message can be inspected, moved and cancelled.
        client.messages("kitchen").move(unique_key="cake", delay="3s")

        with client.subscribe("kitchen", group="cook") as subscription:
            for message in subscription:
                print(message.value.decode())
                message.ack()  # queued; message.ack().wait() would wait until the broker has it
                if message.value == b"cake is ready":
                    break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7170")

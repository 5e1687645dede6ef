"""A program of a user, which test_client_typing checks with `mypy --strict`. It is never run.

A line that is wrong on purpose ends with `# wrong:` and mypy's names of the errors."""

# ruff: noqa: F841
from __future__ import annotations

from datetime import timedelta

import sandq
from sandq.errors import SandqError


async def bill(message: sandq.Message) -> None:
    value: bytes = message.value
    await message.ack()
    wrong: str = message.value  # wrong: assignment
    message.acknowledge()  # wrong: attr-defined


def ship(message: sandq.sync.Message) -> None:
    key: bytes | None = message.key
    message.ack().wait(timeout="5s")
    message.nack(delay=timedelta(seconds=5), error="later").wait()
    done: int = message.ack().wait()  # wrong: assignment
    deadline: int = message.extend("1m").wait()


def no_handler(message: str) -> None: ...


async def asynchronous() -> None:
    async with sandq.connect("localhost:7170") as client:
        offset: str = await client.produce("orders", "paid", delay="2h")
        number: int = await client.produce("orders", b"paid")  # wrong: assignment
        await client.produce("orders", 17)  # wrong: arg-type
        await client.produce("orders", b"", deliver_at=1.5)  # wrong: arg-type
        await client.produce("orders", b"", deley="5s")  # wrong: call-arg
        options: sandq.SendOptions = {"delay": "5s", "unique_key": b"k"}
        await client.produce("orders", b"", **options)
        mistaken: sandq.SendOptions = {"deley": "5s"}  # wrong: typeddict-unknown-key
        async with client.producer("orders") as producer:
            receipt = await producer.send(b"x")
            await producer.send(b"x", deley="5s")  # wrong: call-arg
            await producer.send_many([b"x"], deley="5s")  # wrong: call-arg
            text: str = await receipt
            texts: list[str] = await (await producer.send_many([b"a", {"value": b"b"}]))
        async with client.subscribe("orders", group="g") as subscription:
            async for message in subscription:
                headers: dict[str, object] = message.headers
            async for batch in subscription.batches():
                values: list[bytes] = batch.values
        async for stored in client.messages("orders").list(limit=3):
            state: str = stored.state
        leased = await client.leases("orders", "g").take(3)
        token: str = leased[0].lease_token


async def run(client: sandq.Client, plain: bool) -> None:
    """`run` never returns, so mypy does not check the lines after a call of `run`."""
    try:
        if plain:
            await client.run("orders", "g", ship)
        await client.run("orders", "g", bill, concurrency=3)
    except SandqError as error:
        code: str = error.code
        await client.run("orders", "g", no_handler)  # wrong: arg-type


def blocking() -> None:
    with sandq.sync.connect("localhost:7170") as client:
        offset: str = client.produce("orders", "paid", delay="2h", headers={"a": 1})
        client.produce("orders", 17)  # wrong: arg-type
        client.produce("orders", b"", deley="5s")  # wrong: call-arg
        client.send("orders", b"", deley="5s")  # wrong: call-arg
        client.produce("orders", json={"order": 7})
        client.produce("orders", b"", partition="one")  # wrong: arg-type
        with client.producer("orders") as producer:
            text: str = producer.send(b"x").wait()
            producer.send(b"x", deley="5s")  # wrong: call-arg
            texts: list[str] = producer.send_many([b"a"]).wait(5)
            producer.flush()
        with client.subscribe("orders", group="g", credit=5) as subscription:
            for message in subscription:
                value: bytes = message.value
                ship(message)
                bill(message)  # wrong: arg-type, unused-coroutine
            for batch in subscription.batches():
                count: int = len(batch)
        name: str = client.admin.create_topic("orders", partitions=2, lease="1m").name
        client.admin.create_topic("orders", partitions="two")  # wrong: arg-type
        client.admin.create_topic("orders", max_attempt=3)  # wrong: call-arg
        client.admin.create_topic("orders", backoff={"kind": "fixd"})  # wrong: typeddict-item
        client.admin.create_topic("orders", backoff={"kind": "fixed", "fist": "1s"})  # wrong: typeddict-unknown-key
        client.admin.create_topic("mails", kind="fair", tenants={"acme": {"weight": 3}}, ageing="1m", ttl=None)
        client.admin.update_topic("orders", lease=timedelta(seconds=1), retain_bytes="1GiB")
        client.admin.update_topic("orders", leese="5s")  # wrong: call-arg
        principal: str = client.admin.whoami().principal
        client.admin.update_group("orders", "g", max_attempts="none")
        client.admin.update_group("orders", "g", lease="5s")  # wrong: call-arg
        client.produce("orders", b"", deley="5s")  # wrong: call-arg
        client.admin.create_topics("orders")  # wrong: attr-defined
        done: int = client.messages("orders").cancel_all(dry_run=True).done
        for stored in client.messages("orders").list():
            number: int = stored.state  # wrong: assignment
        for letter in client.dead("orders", "g").list():
            reason: str = letter.reason
        for fetched in client.fetch("orders", 0):
            data: bytes = fetched.value
        tokens: list[str] = [one.lease_token for one in client.leases("orders", "g").take(10, wait="1s")]
        if tokens:
            client.run("orders", "g", no_handler)  # wrong: arg-type
        client.run("orders", "g", ship)


async def keys(client: sandq.Client) -> None:
    kv = client.kv("users")
    version: str = await kv.put("a", b"1", ttl="1h")
    await kv.put("a", None)  # wrong: arg-type
    await kv.cas("a", "2")  # wrong: call-arg
    await kv.cas("a", None, expected=version)
    pairs: dict[str, bytes] = {}
    versions: list[str] = await kv.put_many(pairs)
    await kv.put_many({b"a": "1", b"b": None})
    await kv.put_many([("a", b"1"), (b"b", None)])
    await kv.put_many([("a", 1)])  # wrong: list-item
    entry = await kv.get("a")
    maybe: bytes = entry.value  # wrong: union-attr
    if entry is not None:
        expires_ms: int | None = entry.expires_ms
    for found in await kv.get_many(["a", b"b"]):
        there: sandq.Entry | None = found
    async for row in kv.scan(prefix="user/"):
        value: bytes = row.value
    async with kv.watch(start={0: version}) as watch:
        async for change in watch:
            nothing: bytes = change.value  # wrong: assignment
        position: dict[int, str] = watch.position
    await client.produce("users", None, key="a")


def blocking_keys(client: sandq.sync.Client) -> None:
    kv = client.kv("users")
    entry: sandq.Entry | None = kv.get("a")
    version: str = kv.cas("a", b"1", expected=None, ttl=5)
    versions: list[str] = kv.put_many({"a": "1"})
    rows: list[sandq.Entry] = list(kv.scan(limit=3))
    with kv.watch("a", latest=True) as watch:
        for change in watch:
            deleted: bool = change.deleted

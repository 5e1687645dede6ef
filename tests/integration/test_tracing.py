"""OpenTelemetry spans: where a message is produced, and where it is handled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import sandq
from sandq import Message
from sandq.client.producer.validation import MessageValidation
from sandq.client.tracing import creating, processing, tracing_of
from sandq.errors import InvalidRequest, TooLarge
from sandq.model.headers import headers_unpack
from sandq.node.running import Serving

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return the spans that have ended."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield kept
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def handled(client: sandq.Client, count: int) -> list[Message]:
    """Run group g until it has handled this many messages, and return them. The handler fails for the value "bad"."""
    got: list[Message] = []

    async def handle(message: Message) -> None:
        got.append(message)
        if len(got) == count:
            scope.cancel()
        if message.value == b"bad":
            raise sandq.Dead("it is bad")

    with trio.CancelScope() as scope:
        await client.run("t", "g", handle, concurrency=1)
    return got


async def test_a_message_is_handled_in_a_trace_that_is_linked_with_its_producers(
    node: Serving, spans: InMemorySpanExporter
) -> None:
    async with sandq.connect(f"127.0.0.1:{node.client_port}", tracing=True) as client:
        await client.admin.create_topic("t", partitions=1)
        with trace.get_tracer("app").start_as_current_span("request"):
            await client.produce("t", b"good", headers={"kind": "mail"})
        await client.produce("t", b"bad")
        good, _ = await handled(client, 2)
    (request,) = named(spans, "request")
    first, second = named(spans, "create t")
    assert first.parent == request.context and second.parent is None and first.kind is SpanKind.PRODUCER
    assert good.headers["kind"] == "mail" and format(first.context.span_id, "016x") in good.headers["traceparent"]
    one, other = named(spans, "process t")
    assert one.kind is SpanKind.CONSUMER and linked(one) == [ids(first)]
    assert one.parent is None and one.context.trace_id != first.context.trace_id
    attributes: dict[str, Any] = {**(one.attributes or {})}
    assert attributes == {
        "messaging.system": "sandq",
        "messaging.destination.name": "t",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": good.id,
        "messaging.consumer.group.name": "g",
        "sandq.attempt": 1,
    }
    assert linked(other) == [ids(second)]
    assert other.status.status_code is StatusCode.ERROR and [event.name for event in other.events] == ["exception"]


async def test_consumer_span_is_in_the_trace_of_the_producer(node: Serving, spans: InMemorySpanExporter) -> None:
    async with sandq.connect(f"127.0.0.1:{node.client_port}", tracing="parent") as client:
        await client.admin.create_topic("t", partitions=1)
        await client.produce("t", b"from elsewhere", headers={"traceparent": TRACEPARENT})
        await client.produce_many("t", [b"a", b"b"])
        await client.produce("t", b"broken", headers={"traceparent": "no such thing"})
        async with client.subscribe("t", group="g") as subscription:
            for _ in range(4):
                message = await anext(subscription)
                with client.processing(message, group="g"):
                    inside = trace.get_current_span().get_span_context()
                    assert inside.is_valid
                message.ack()
    (many,) = named(spans, "create t")
    elsewhere, a, b, broken = named(spans, "process t")
    assert elsewhere.parent is not None and format(elsewhere.parent.span_id, "016x") == "b7ad6b7169203331"
    assert a.parent == b.parent and a.parent is not None and a.parent.span_id == many.context.span_id
    assert a.context.trace_id == many.context.trace_id and not a.links
    assert broken.parent is None and not broken.links, "an invalid traceparent must not create a link"


def test_a_blocking_client_traces_in_the_thread_that_asks(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandq.testing import broker

    with broker() as server, sandq.sync.connect(server.address, tracing=True) as client:
        client.admin.create_topic("t", partitions=1)
        with trace.get_tracer("app").start_as_current_span("request"), client.producer("t") as producer:
            producer.send(b"v").wait()
            client.produce("t", b"w")
            client.produce_many("t", [b"x", b"y"])
        with client.subscribe("t", group="g") as subscription:
            message = next(iter(subscription))
            with client.processing(message):
                pass
            message.ack()
    (request,) = named(spans, "request")
    created = named(spans, "create t")
    assert [span.parent for span in created] == [request.context] * 3
    assert linked(named(spans, "process t")[0]) == [ids(created[0])]


async def test_without_it_nothing_is_made(node: Serving, spans: InMemorySpanExporter) -> None:
    async with sandq.connect(f"127.0.0.1:{node.client_port}") as client:
        await client.admin.create_topic("t", partitions=1)
        await client.produce("t", b"v")
        (message,) = await handled(client, 1)
        with client.processing(message):
            pass
    assert not spans.get_finished_spans() and not message.headers


def test_trace_headers_do_not_change_or_refuse_messages(spans: InMemorySpanExporter) -> None:
    tracing = tracing_of(True)
    plain, traced = MessageValidation({}), MessageValidation({}, traced=creating(tracing, "t"))
    full = {"a": "x" * (plain.headers_bytes - 6)}
    assert headers_unpack(traced.headers(full)) == full, "there is no room for a traceparent"
    with pytest.raises(TooLarge, match=f"headers: {plain.headers_bytes + 1} bytes"):
        traced.headers({"a": full["a"] + "x"})
    token = context.attach(baggage.set_baggage("who", "somebody else"))
    try:
        found = headers_unpack(traced.headers({"baggage": "mine", "kind": b"mail"}))
    finally:
        context.detach(token)
    assert found.pop("traceparent") and found == {"baggage": "mine", "kind": b"mail"}


@pytest.mark.parametrize("ties", ["link", "parent"])
@pytest.mark.parametrize(
    ("headers", "is_tied"),
    [
        ({"traceparent": TRACEPARENT, "tracestate": "=" * 100_000}, True),
        ({"traceparent": TRACEPARENT, "tracestate": b"a=b", "baggage": "=;,%" * 10_000}, True),
        ({"traceparent": b"bytes"}, False),
        ({"traceparent": 7}, False),
        ({"traceparent": None}, False),
        ({"traceparent": TRACEPARENT.upper() + "\0"}, False),
        ({"traceparent": "0" * 100_000}, False),
    ],
)
def test_invalid_trace_headers_do_not_fail_the_handler(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, ties: str, headers: dict[str, Any], is_tied: bool
) -> None:
    message = SimpleNamespace(topic="t", id="1", attempt=1, headers=headers)
    with processing(tracing_of(ties), message):
        pass
    (span,) = spans.get_finished_spans()
    assert bool(span.links or span.parent) is is_tied
    assert not [record for record in caplog.records if "aggage" in record.getMessage()]


class Unreadable:
    """A message with headers that are not a map, as an earlier version may have stored it."""

    topic, id, attempt = "t", "1", 1

    @property
    def headers(self) -> dict[str, Any]:
        return headers_unpack(b"\xc1")


@pytest.mark.parametrize("ties", [True, "parent"])
def test_message_with_unreadable_headers_is_handled_in_a_span(spans: InMemorySpanExporter, ties: bool | str) -> None:
    with processing(tracing_of(ties), Unreadable()):
        pass
    (span,) = spans.get_finished_spans()
    assert not span.links and not span.parent


def test_missing_trace_data_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="True, False, 'link' or 'parent' is expected, not 'all'"):
        tracing_of("all")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'sandq-client\[otel\]'"):
        tracing_of(True)

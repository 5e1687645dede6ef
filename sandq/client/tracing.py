"""OpenTelemetry spans for messages: one where a message is produced, and one where it is handled. Headers link both.

`traceparent` and `tracestate` (W3C Trace Context) travel as headers, so that consumers in any language can continue the
trace. A message that already has a `traceparent` keeps it. Attributes follow OpenTelemetry's conventions for messaging.
`opentelemetry` is imported only if tracing is turned on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from sandq.model.errors import InvalidRequest
from sandq.model.headers import HeaderValue

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link

TRACEPARENT: Final = "traceparent"
TRACE_HEADERS: Final = (TRACEPARENT, "tracestate")
LINK, PARENT = "link", "parent"

Headers = Mapping[str, HeaderValue]


class Delivered(Protocol):
    """A handled message, as its span describes it."""

    @property
    def topic(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


class Tracing:
    """Makes the spans.

    `ties`: how the span of a handled message relates to its producer's span. LINK: a new trace with a link to the
    producer's span, because the message may be handled days later. PARENT: the same trace.
    """

    def __init__(self, ties: str) -> None:
        """Raises InvalidRequest if OpenTelemetry's API is not installed."""
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise InvalidRequest(
                "tracing: OpenTelemetry's API is not installed: pip install 'sandq-client[otel]'"
            ) from None
        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer("sandq")
        self._ties = ties

    def created(self, topic: str, headers: Headers | None) -> Headers | None:
        """Make a span for a message that this client produces. Return the message's headers, including the trace
        headers."""
        if headers is not None and (not isinstance(headers, Mapping) or TRACEPARENT in headers):
            return headers
        kind = self._trace.SpanKind.PRODUCER
        span = self._tracer.start_span(f"create {topic}", kind=kind, attributes=self._attributes(topic, "create"))
        carrier: dict[str, HeaderValue] = {}
        self._propagate.inject(carrier, self._trace.set_span_in_context(span))
        span.end()
        return {**carrier, **headers} if headers else carrier  # headers set by the application take precedence

    @contextmanager
    def processing(self, message: Delivered, group: str | None = None) -> Iterator[None]:
        """Make a span for a message that is handled in the block; it records an exception that leaves the block."""
        try:
            headers = message.headers
        except InvalidRequest:
            headers = {}  # a restored backup may contain headers of any form
        context, links = self._tied(headers)
        attributes = {
            **self._attributes(message.topic, "process"),
            "messaging.message.id": message.id,
            "sandq.attempt": message.attempt,
        }
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        kind = self._trace.SpanKind.CONSUMER
        name = f"process {message.topic}"
        with self._tracer.start_as_current_span(name, context, kind=kind, attributes=attributes, links=links):
            yield

    def _tied(self, headers: Headers) -> tuple[Context | None, list[Link]]:
        if TRACEPARENT not in headers:
            return None, []
        # Pass on only the trace headers, so that the producer's other headers are neither read nor logged.
        carrier = {name: value for name in TRACE_HEADERS if isinstance(value := headers.get(name), str)}
        context = self._propagate.extract(carrier)
        producer = self._trace.get_current_span(context).get_span_context()
        if not producer.is_valid:
            return None, []
        return (context, []) if self._ties == PARENT else (None, [self._trace.Link(producer)])

    @staticmethod
    def _attributes(topic: str, operation: str) -> dict[str, Any]:
        return {
            "messaging.system": "sandq",
            "messaging.destination.name": topic,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
        }


def tracing_of(wanted: bool | str) -> Tracing | None:
    """Return the tracing for the argument `tracing` of `connect`: False, True (LINK), LINK or PARENT. Raises
    InvalidRequest."""
    if wanted is False:
        return None
    if wanted is True:
        return Tracing(LINK)
    if wanted in (LINK, PARENT):
        return Tracing(wanted)
    raise InvalidRequest(f"tracing: True, False, {LINK!r} or {PARENT!r} is expected, not {wanted!r}")


def processing(tracing: Tracing | None, message: Delivered, group: str | None = None) -> AbstractContextManager[None]:
    """Make a span for a message that is handled in the block, if there is tracing."""
    return nullcontext() if tracing is None else tracing.processing(message, group)


def creating(tracing: Tracing | None, topic: str) -> Callable[[Headers | None], Headers | None] | None:
    """Return the function that adds trace headers to messages of a topic; None without tracing."""
    if tracing is None:
        return None
    return lambda headers: tracing.created(topic, headers)

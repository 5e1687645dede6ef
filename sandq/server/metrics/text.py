"""Write the text format of Prometheus at low cost per sample.

`prometheus_client` makes an object of every sample. With a hundred thousand such objects, the garbage collector would
stop the whole process. Here, a sample is a line of text from the start. All metrics are written like this, even those
with few samples.
"""

from __future__ import annotations

from collections.abc import Iterable

from sandq.broker.stats.histogram import Histogram
from sandq.server.metrics.catalog import COUNTER, Metric

_TOTAL = "_total"
_EOF = "# EOF\n"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Exposition:
    """The text of the given metrics; each has its header, even without samples.

    `openmetrics`: use OpenMetrics instead of the Prometheus text format 0.0.4. Labels are strings made by `labels`.
    """

    def __init__(self, metrics: Iterable[Metric], *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._metrics = list(metrics)
        self._lines: dict[str, list[str]] = {metric.name: [] for metric in self._metrics}
        self._labels = {metric.name: metric.labels for metric in self._metrics}

    def labels(self, name: str, *values: str) -> str:
        """Return `label="value",...` for samples of a metric."""
        pairs = zip(self._labels[name], values, strict=True)
        return ",".join([f'{label}="{value.translate(_ESCAPES)}"' for label, value in pairs])

    def value(self, name: str, value: float, labels: str = "") -> None:
        """Add a line with the value of a metric."""
        self._lines[name].append(f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n")

    def histogram(self, name: str, found: Histogram, labels: str = "") -> None:
        """Add a histogram. If it has buckets below 0, leave out the sum: if it fell, that would look like a restart."""
        lines, counts, count = self._lines[name], list(found.counts), 0
        before = f"{labels}," if labels else ""
        for bound, more in zip(found.bounds, counts, strict=False):
            count += more
            lines.append(f'{name}_bucket{{{before}le="{bound}"}} {count}\n')
        count += counts[-1]
        lines.append(f'{name}_bucket{{{before}le="+Inf"}} {count}\n')
        if found.bounds[0] >= 0:
            braced = f"{{{labels}}}" if labels else ""
            lines.append(f"{name}_count{braced} {count}\n")
            lines.append(f"{name}_sum{braced} {found.total}\n")

    def text(self, others: bytes) -> bytes:
        """Return the whole text. `others`: text that `prometheus_client` wrote in the same format."""
        parts = [others.decode().removesuffix(_EOF)]
        for metric in self._metrics:
            name = metric.name
            if self._openmetrics and metric.type == COUNTER:
                name = name.removesuffix(_TOTAL)
            parts.append(f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n")
            parts.append("".join(self._lines[metric.name]))
        if self._openmetrics:
            parts.append(_EOF)
        return "".join(parts).encode()


def _number(value: float) -> str:
    """Return a number as text; True is 1."""
    return str(int(value)) if isinstance(value, bool) else str(value)

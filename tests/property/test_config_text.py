"""Any text in a configuration file or the environment gives a configuration, or a ConfigError with positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.config import NodeConfig, environment_names, load_config
from sandq.model.errors import ConfigError
from tests.support.examples import examples
from tests.support.paths import ROOT

GOOD = (ROOT / "configs" / "single.yaml").read_text(encoding="utf-8")
LINES = [line for line in GOOD.splitlines() if line.strip() and not line.lstrip().startswith("#")]
SNIPPETS = ["&a", "*a", "!!int x", "{", "]", "- ", "? ", ": ", "<<: {}", "~", "true", "1e999", "2001-02-30", "'", "|\n"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "any.yaml"


def load(file: Path, text: str, environ: dict[str, str]) -> NodeConfig | None:
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        return load_config(file, environ)
    except ConfigError as error:
        starts = (f"{file}:", "environment SANDQ_")
        lines = error.details["mistakes"]
        assert isinstance(lines, list)
        assert lines
        assert all(line.startswith(starts) for line in lines)
        return None


@settings(max_examples=examples(150), deadline=None)
@given(st.text(max_size=60))
def test_any_text(file: Path, text: str) -> None:
    load(file, text, {})


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_good_file_after_an_accident(file: Path, data: st.DataObject) -> None:
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        column = data.draw(st.integers(0, len(lines[at])))
        piece = data.draw(st.sampled_from(SNIPPETS) | st.text(max_size=4))
        lines[at] = data.draw(st.sampled_from([lines[at][:column] + piece + lines[at][column:], lines[at - 1], piece]))
    load(file, "\n".join(lines), {})


VARIABLES = st.sampled_from(environment_names()) | st.text("ABCDEILNOS_", max_size=12).map("SANDQ_{}".format)


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(VARIABLES, st.text(max_size=12) | st.sampled_from(SNIPPETS), max_size=4))
def test_any_environment(file: Path, environ: dict[str, str]) -> None:
    config = load(file, "\n".join(LINES), environ)
    if config is not None:
        assert environ.keys() <= set(environment_names())
        assert config.node.id == environ.get("SANDQ_NODE__ID", "node1")

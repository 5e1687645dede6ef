"""`python -m tests.support.suites`: run the integration tests of kombu against a node.

The tests come from kombu's source distribution, whose hash is in `requirements-suites.lock`, and are unpacked into
`build/suites`. `kombu_suite.py` connects them with the transport, and says which tests are not applicable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess

BUILD = ROOT / "build" / "suites"
LOCK = ROOT / "requirements-suites.lock"
SUITE_S = 300
"""Time in seconds after which the tests are ended."""


def unpacked() -> Path:
    """Return the directory of kombu's tests, with the file that connects them."""
    BUILD.mkdir(parents=True, exist_ok=True)
    download = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    source = ("--no-binary", ":all:", "--require-hashes", "-r", str(LOCK), "-d", str(BUILD))
    subprocess.run([*download, *source], check=True)
    (archive,) = BUILD.glob("kombu-*.tar.gz")
    directory = BUILD / archive.name.removesuffix(".tar.gz")
    shutil.rmtree(directory, ignore_errors=True)
    with tarfile.open(archive) as files:
        # Not the package itself, which would be imported in place of the installed one.
        tests = [each for each in files.getmembers() if each.name.startswith(f"{directory.name}/t/")]
        files.extractall(BUILD, tests, filter="data")
    shutil.copy(Path(__file__).with_name("kombu_suite.py"), directory / "t" / "integration" / "test_sandq.py")
    return directory


def main() -> int:
    """Run the tests; return the exit code of pytest."""
    directory = unpacked()
    with tempfile.TemporaryDirectory() as place:
        node = NodeProcess(Path(place))
        node.start()
        try:
            environ = os.environ | {"SANDQ_URL": f"sandq://{node.address}/kombu"}
            (directory / "pytest.ini").write_text("[pytest]\n")
            command = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-W", "ignore", "-p", "no:cacheprovider")
            return subprocess.run(
                [*command, "t/integration/test_sandq.py"], cwd=directory, env=environ, timeout=SUITE_S, check=False
            ).returncode
        finally:
            node.close()


if __name__ == "__main__":
    sys.exit(main())

"""The files in deploy/ work, as far as they run without a container engine, and docs/how-to/deploy.md is right.

This covers the steps of the image, the installation as a service, and the nodes of compose."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.shell import Shell
from tests.support.release import release
from tests.support.waiting import PATIENCE_S, wait_until
from tests.unit.deploy.test_manifests import of_pod

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
HEALTH = DEPLOY / "container" / "healthcheck.py"


def instructions(containerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of all stages: the keyword and its arguments."""
    text = re.sub(r"^#.*\n", "", containerfile, flags=re.M).replace("\\\n", "")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def run(line: str, directory: Path, **environ: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=directory,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def test_files_named_on_the_page_exist() -> None:
    for path in re.findall(r"\]\(\.\./\.\./(deploy[^)#]*)\)", PAGE):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"(?<![\w/])deploy/[\w./-]+\w", PAGE):
        assert (ROOT / path).exists(), path


def test_each_pod_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    """Run the commands of the page, and check the certificate of each pod."""
    from cryptography import x509

    shell = Shell(tmp_path)
    for line in re.findall(r"^    (sandq certs .+)$", PAGE, re.M):
        shell(line)
    pods = ("sandq-0", "sandq-1", "sandq-2")
    for pod in pods:
        certificate = x509.load_pem_x509_certificate((tmp_path / "certs" / f"{pod}.pem").read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = named.get_values_for_type(x509.DNSName)
        assert {pod, f"{pod}.sandq-nodes.prod.svc", "sandq.prod.svc"} <= {*names}
        assert not ({*pods} - {pod}) & {*names}
    (directory,) = re.findall(r"--from-file=(\w+)$", PAGE, re.M)
    files = {path.name for path in (tmp_path / directory).iterdir()}
    assert files == {"ca.pem", *[f"{pod}{end}.pem" for pod in pods for end in ("", "-key")]}


class Composed:
    """Runs the sandq services of compose.yaml as processes. Hosts become ports, and volumes become directories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
        self.ports = {(node, port): free_port() for node in self.nodes for port in (7170, 2108, 9190, 9900)}
        self.shell = Shell(directory)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.services if name.startswith("node")]

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a service, with the addresses and paths of this machine."""
        found = {**self.services[name]["environment"]}
        for key, value in found.items():
            text = str(value).replace("/secrets", str(self.directory / "secrets" / name))
            text = re.sub(r"^0\.0\.0\.0:(\d+)", lambda port: f"127.0.0.1:{self.ports[name, int(port[1])]}", text)
            text = re.sub(r"(node\d):(\d+)", lambda at: f"127.0.0.1:{self.ports[at[1], int(at[2])]}", text)
            found[key] = text
        return {**found, "SANDQ_NODE__ADVERTISE_HOST": "127.0.0.1", "SANDQ_NODE__DATA_DIR": str(self.directory / name)}

    def script(self, name: str, volume: str, **environ: str) -> None:
        """Run the script of a service that runs once."""
        script = DEPLOY / "compose" / self.services[name]["entrypoint"][1].strip("/")
        (self.directory / volume).mkdir(exist_ok=True)
        variables = {"SANDQ_NODE__DATA_DIR": str(self.directory / volume), **environ}
        prefix = " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())
        self.shell(f"{prefix} sh {shlex.quote(str(script))};")

    def start(self) -> None:
        for name in self.nodes:
            with (self.directory / f"{name}.log").open("wb") as log:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-m", "sandq.cli"],
                    env=os.environ | {"PYTHONPATH": str(ROOT), **self.environment(name)},
                    cwd=self.directory,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )

    def is_healthy(self, name: str) -> bool:
        url = f"https://127.0.0.1:{self.ports[name, 2108]}/readyz"
        return subprocess.run([sys.executable, HEALTH], env={"SANDQ_HEALTH_URL": url}, check=False).returncode == 0

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(PATIENCE_S)


@pytest.mark.long
def test_compose_nodes_form_a_cluster(tmp_path: Path) -> None:
    composed = Composed(tmp_path)
    (tmp_path / "secrets").mkdir()
    where, of_node1 = {"SECRETS": str(tmp_path / "secrets")}, {"SECRETS": str(tmp_path / "secrets" / "node1")}
    composed.script("setup", "authority", **where)
    assert not [*(tmp_path / "secrets").rglob("ca-key*")], "no node sees the authority's key"
    before = {path: path.read_bytes() for path in (tmp_path / "secrets").glob("*/*.*")}
    for node in composed.nodes:
        keys = [path.name for path in (tmp_path / "secrets" / node).glob("*-key.pem")]
        assert keys == [f"{node}-key.pem"], "no node sees the key of another node"
    composed.script("setup", "authority", **where)
    assert before == {path: path.read_bytes() for path in before}, "existing files stay"
    assert not composed.is_healthy("node1")
    composed.start()
    try:
        wait_until(lambda: all(composed.is_healthy(name) for name in composed.nodes))
        server = f"127.0.0.1:{composed.ports['node1', 7170]}"
        scraped = tmp_path / "scraped" / "prometheus.token"
        tokens = []
        for _ in range(2):  # repeat it, as after a kill before the file was written
            composed.script("token", "scraped", **of_node1, NODE1=str(tmp_path / "node1"), SERVER=server)
            tokens.append(scraped.read_text().strip())
            scraped.unlink()
        composed.script("token", "scraped", **of_node1, NODE1=str(tmp_path / "node1"), SERVER=server)
        token = scraped.read_text().strip()
        composed.script("token", "scraped", **of_node1, NODE1=str(tmp_path / "node1"), SERVER=server)
        assert token == scraped.read_text().strip() and token not in tokens, "existing files stay"
        admin = f"--server {server} --ca secrets/node1/ca.pem --token-file node1/admin.token"
        wait_until(lambda: composed.shell(f"sandctl {admin} cluster nodes -o json").count('"up": true') == 3)
        numbers = composed.shell(
            f"curl -sf --cacert scraped/ca.pem -H 'Authorization: Bearer {token}' "
            f"https://127.0.0.1:{composed.ports['node2', 2108]}/metrics;"
        )
        assert "sandq_insecure 0" in numbers
    finally:
        composed.stop()


class Pods(Composed):
    """Runs the pods of the StatefulSet as processes, in the same way."""

    @property
    def nodes(self) -> list[str]:
        return ["sandq-0", "sandq-1", "sandq-2"]

    def environment(self, name: str) -> dict[str, str]:
        self.services[name] = {"environment": of_pod(name)}
        found = super().environment(name)
        seeds = [f"127.0.0.1:{self.ports[pod, 9900]}" for pod in self.nodes]
        assert found["SANDQ_CLUSTER__SEEDS"] == ",".join([f"{pod}.sandq-nodes:9900" for pod in self.nodes])
        return {**found, "SANDQ_CLUSTER__SEEDS": ",".join(seeds)}


@pytest.mark.long
def test_kubernetes_pods_after_init_form_a_cluster(tmp_path: Path) -> None:
    pods = Pods(tmp_path)
    for line in re.findall(r"^    (sandq certs .+)$", PAGE, re.M):
        pods.shell(line)
    for pod in pods.nodes:  # as the init container does
        secrets = tmp_path / "secrets" / pod
        secrets.mkdir(parents=True)
        for name, path in (("tls.crt", f"{pod}.pem"), ("tls.key", f"{pod}-key.pem"), ("ca.crt", "ca.pem")):
            shutil.copyfile(tmp_path / "certs" / path, secrets / name)
            (secrets / name).chmod(0o600)
        (secrets / "cluster.secret").write_text("a secret of the cluster, for a test")
        (secrets / "cluster.secret").chmod(0o600)
    pods.start()
    try:
        server = f"--server 127.0.0.1:{pods.ports['sandq-0', 7170]} --ca {secrets}/ca.crt"
        # The pods wait for `cluster init`. Silent peers are no reason to found a cluster.
        wait_until(lambda: pods.shell.run(f"sandctl {server} cluster info").code == 0)
        assert not pods.is_healthy("sandq-0")
        (init,) = re.findall(r"sandctl --ca /secrets/ca.crt (cluster init --yes)", PAGE)
        pods.shell(f"sandctl {server} {init}")
        wait_until(lambda: all(pods.is_healthy(name) for name in pods.nodes))
        token = tmp_path / "sandq-0" / "admin.token"
        wait_until(token.exists)
        listed = f"sandctl {server} --token-file {token} cluster nodes -o json"
        wait_until(lambda: pods.shell(listed).count('"up": true') == 3)
    finally:
        pods.stop()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    release().build(directory)
    return directory


@pytest.fixture
def image(tmp_path: Path, dist: Path) -> Iterator[Path]:
    """Return an empty root with the results of the image's steps, without Debian's packages and users."""
    (tmp_path / "dist").symlink_to(dist)
    for word, text in instructions((DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")):
        if word == "RUN":
            steps = [step.strip() for step in text.split("&&")]
            ours = [step for step in steps if not re.match(r"apt-get|rm -rf /var/lib/apt|group|user|install -d", step)]
            line = re.sub(r"(?<![\w.])/(dist|opt)\b", rf"{tmp_path}/\1", " && ".join(ours) or "true")
            run(line, dist)
    yield tmp_path


@pytest.mark.long
def test_image_is_built_from_a_release_and_runs(image: Path) -> None:
    found = dict.fromkeys(("USER", "ENTRYPOINT", "HEALTHCHECK", "ENV"), "")
    for word, text in instructions((DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")):
        found[word] = text
    assert found["USER"] == "10001:10001" and json.loads(found["ENTRYPOINT"]) == ["sandq"]
    programs = image / "opt" / "sandq" / "bin"
    assert not (programs / "pip").exists(), "nothing is installed in a container"
    ports = [free_port(), free_port()]
    environ = dict(word.split("=", 1) for word in found["ENV"].split() if word.startswith("SANDQ_"))
    environ |= {
        "SANDQ_NODE__DATA_DIR": str(image / "data"),
        "SANDQ_LISTEN__CLIENT": f"127.0.0.1:{ports[0]}",
        "SANDQ_LISTEN__HTTP": f"127.0.0.1:{ports[1]}",
        "SANDQ_LISTEN__PEER": "127.0.0.1:0",
        "SANDQ_LISTEN__GOSSIP": "127.0.0.1:0",
    }
    with (image / "log").open("wb") as log:
        node = subprocess.Popen(
            [programs / "sandq"], env={"PATH": "/usr/bin:/bin", **environ}, cwd=image, stdout=log, stderr=log
        )
    try:
        health = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
        assert health[1].endswith(f"/{HEALTH.name}")
        at = {"SANDQ_HEALTH_URL": f"http://127.0.0.1:{ports[1]}/readyz"}
        wait_until(lambda: subprocess.run([programs / "python3", HEALTH], env=at, check=False).returncode == 0)
        run(f"{programs}/sandctl --server 127.0.0.1:{ports[0]} topic create orders", image)
        node.terminate()
        assert node.wait(PATIENCE_S) == 0
    finally:
        node.kill()


@pytest.mark.long
def test_service_is_installed_from_a_release(tmp_path: Path, dist: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    install = f"umask 077 && {DEPLOY}/systemd/install.sh {dist} {root}"
    run(install, tmp_path, PYTHON=sys.executable)
    (root / "etc" / "sandq" / "sandq.yaml").write_text("node: {id: mine}\ncluster: {bootstrap: true}\n")
    run(install, tmp_path, PYTHON=sys.executable)
    assert "mine" in (root / "etc" / "sandq" / "sandq.yaml").read_text(), "an existing configuration stays"
    assert (root / "opt" / "sandq.old").is_dir()
    for path in ("opt/sandq", "opt/sandq/bin/sandq", "opt/sandq/lib", "etc/sandq/sandq.yaml"):
        assert (root / path).stat().st_mode & 0o004, "the service runs as another user"
    unit = (root / "lib" / "systemd" / "system" / "sandq.service").read_text()
    program = re.findall(r"^ExecStart=(\S+)", unit, re.M)[0]
    assert (root / program.lstrip("/")).read_text().startswith("#!/opt/sandq/bin/python3\n")
    python = root / "opt" / "sandq" / "bin" / "python"
    run(f"{python} -m sandq.cli check-config {root}/etc/sandq/sandq.yaml", tmp_path)
    damaged = tmp_path / "dist"
    shutil.copytree(dist, damaged)
    with (damaged / "requirements.lock").open("a") as lock:
        lock.write("\n")
    with pytest.raises(AssertionError, match=r"requirements\.lock: FAILED"):
        run(f"{DEPLOY}/systemd/install.sh {damaged} {root}", tmp_path, PYTHON=sys.executable)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is missing")
def test_service_unit_is_valid_and_hardened() -> None:
    unit = DEPLOY / "systemd" / "sandq.service"
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    others = [line for line in done.stderr.splitlines() if "sandq.service" in line and "is not executable" not in line]
    assert others == []
    subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)], check=True)

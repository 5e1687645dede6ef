"""Tests that deploy/ configures nodes as intended: secured, and able to start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import sandq
from sandq.errors import ConfigError
from sandq.model.config import NodeConfig, environment_names, load_config
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
CHART = DEPLOY / "helm" / "sandq"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read(DEPLOY / "compose" / "compose.yaml"))
    return found


def base(kind: str) -> dict[str, Any]:
    documents = [one for path in sorted(BASE.glob("*.yaml")) for one in yaml.safe_load_all(read(path))]
    (found, *_) = [one for one in documents if one["kind"] == kind]
    assert isinstance(found, dict)
    return found


def of_pod(name: str) -> dict[str, str]:
    """Return the environment of a pod of the base as Kubernetes sets it."""
    (container,) = base("StatefulSet")["spec"]["template"]["spec"]["containers"]
    known: dict[str, str] = {}
    fields = {"metadata.name": name, "metadata.namespace": "prod"}
    for variable in container["env"]:
        text = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        known[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text)
    return {name: value for name, value in known.items() if name.startswith("SANDQ_")}


CONFIGS = {
    **{f"compose {node}": compose()["services"][node]["environment"] for node in ("node1", "node2", "node3")},
    **{f"kubernetes {pod}": of_pod(pod) for pod in ("sandq-0", "sandq-2")},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_node_starts_secured(name: str) -> None:
    """The node listens beyond its machine. So a node without full security is refused."""
    config: NodeConfig = load_config(None, {"SANDQ_NODE__DATA_DIR": "/var/lib/sandq", **CONFIGS[name]})
    assert config.listen.client.host == "0.0.0.0" and not config.security.insecure and not config.exposed
    assert (config.tls.client, config.tls.http, config.tls.peer) == ("require", "require", "require")
    assert config.security.authentication == "require" and config.cluster.secret_file is not None
    assert config.node.id == name.split()[1] and config.cluster.seeds


def test_compose_files_match_the_schema() -> None:
    files = [DEPLOY / "compose" / "compose.yaml", *(ROOT / "docs" / "examples").glob("*/compose.yaml")]
    assert len(files) == 5
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *map(str, files)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_at_most_one_node_may_found_the_cluster() -> None:
    founders = [name for name, env in CONFIGS.items() if env.get("SANDQ_CLUSTER__BOOTSTRAP") == "true"]
    assert founders == ["compose node1"], "on Kubernetes an operator founds the cluster"


def test_pods_find_each_other() -> None:
    headless = base("StatefulSet")["spec"]["serviceName"]
    assert of_pod("sandq-1")["SANDQ_NODE__ADVERTISE_HOST"] == f"sandq-1.{headless}.prod.svc"
    assert of_pod("sandq-1")["SANDQ_CLUSTER__SEEDS"].split(",")[0] == f"sandq-0.{headless}:9900"
    services = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(read(BASE / "services.yaml"))}
    assert services[headless]["clusterIP"] == "None" and services[headless]["publishNotReadyAddresses"] is True
    ports = {port["name"] for port in services[headless]["ports"]}
    (container,) = base("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert {port["name"] for port in container["ports"]} == ports


def test_kubernetes_service_variables_are_disabled() -> None:
    """For a Service named sandq, Kubernetes sets SANDQ_SERVICE_HOST. A node refuses unknown variables."""
    assert base("StatefulSet")["spec"]["template"]["spec"]["enableServiceLinks"] is False
    with pytest.raises(ConfigError, match="no such setting"):
        load_config(None, {**of_pod("sandq-0"), "SANDQ_SERVICE_HOST": "10.0.0.1"})


def test_pods_may_do_little_and_have_time_to_stop() -> None:
    pod = base("StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    for container in (*pod["containers"], *pod["initContainers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    grace_s = load_config(None, {}).shutdown_grace_ms / 1000
    assert pod["terminationGracePeriodSeconds"] >= grace_s + 15
    (container,) = pod["containers"]
    assert container["livenessProbe"]["tcpSocket"]["port"] == "client", "neither a full disk nor HTTP needs a restart"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert base("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_network_policy_allows_peer_ports_only_for_nodes() -> None:
    nodes, clients = base("NetworkPolicy")["spec"]["ingress"]
    assert {"peer", "gossip", "gossip-udp"} <= {port["port"] for port in nodes["ports"]}
    assert {port["port"] for port in clients["ports"]} == {"client", "http"}
    (selected,) = nodes["from"]
    assert selected["podSelector"]["matchLabels"] == base("StatefulSet")["spec"]["selector"]["matchLabels"]


def test_every_variable_is_a_key_of_the_configuration() -> None:
    texts = [read(path) for path in DEPLOY.rglob("*") if path.is_file() and path.suffix in (".yaml", ".tpl")]
    named = {name for text in texts for name in re.findall(r"\bSANDQ_[A-Z]+__[A-Z_]+\b", text)}
    assert len(named) > 12 and named <= {*environment_names()}


def test_chart_has_the_settings_of_the_base() -> None:
    """Checks that need no Helm."""
    chart, plain = read(CHART / "templates" / "statefulset.yaml"), read(BASE / "statefulset.yaml")
    for pattern in (
        r"\bSANDQ_[A-Z_]+",
        r"path: /\w+",
        r"mountPath: [\w/]+",
        r"containerPort: \d+",
        r"(?:allow|run|read|cap|drop)[A-Za-z]*: [\w\[]+",
        r"(?:\w+Seconds|failureThreshold): \d+",
    ):
        found = re.findall(pattern, plain)
        assert found and re.findall(pattern, chart) == found, pattern


@pytest.mark.long
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is missing")
def test_rendered_chart_equals_the_base() -> None:
    command = ["helm", "template", "sandq", str(CHART), "-n", "prod", "--kube-version", "1.30.0"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    subprocess.run(["helm", "lint", str(CHART)], check=True)
    documents = [one for path in sorted(BASE.glob("*.yaml")) for one in yaml.safe_load_all(read(path))]
    wanted = {(one["kind"], one["metadata"]["name"]): one for one in documents if one["kind"] != "Kustomization"}
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(rendered)}
    for one in found.values():
        for label in ("managed-by", "version"):
            del one["metadata"]["labels"][f"app.kubernetes.io/{label}"]
            labels = one["spec"].get("template", {}).get("metadata", {}).get("labels", {})
            labels.pop(f"app.kubernetes.io/{label}", None)
    assert found == wanted


def test_versions_are_the_same_everywhere() -> None:
    image = yaml.safe_load(read(BASE / "kustomization.yaml"))["images"][0]
    chart = yaml.safe_load(read(CHART / "Chart.yaml"))
    assert image["newTag"] == chart["appVersion"] == sandq.__version__
    assert chart["version"] == sandq.__version__.replace(".dev", "-dev."), "Helm takes semantic versions"
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    assert f"sandq-client=={sandq.__version__}" in project["dependencies"]


def test_scripts_are_valid_and_executable() -> None:
    scripts = [*DEPLOY.rglob("*.sh")]
    assert len(scripts) == 3
    for script in scripts:
        subprocess.run(["sh", "-n", script], check=True)
        assert script.stat().st_mode & 0o111


def test_mounted_files_of_compose_exist() -> None:
    directory = DEPLOY / "compose"
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (directory / source).is_file(), source
            else:
                assert source in compose()["volumes"], source


def test_systemd_unit_has_stop_timeout_and_few_rights() -> None:
    unit = read(DEPLOY / "systemd" / "sandq.service")
    keys = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    assert int(keys["TimeoutStopSec"].removesuffix("s")) >= load_config(None, {}).shutdown_grace_ms / 1000 + 15
    assert (keys["LimitCORE"], keys["ProcSubset"]) == ("0", "pid")
    assert keys["User"] == "sandq" and keys["CapabilityBoundingSet"] == "" and keys["ProtectSystem"] == "strict"


def test_interrupted_secret_setup_is_completed_later(tmp_path: Path) -> None:
    """If the compose setup is interrupted anywhere, the next run completes it."""
    programs, secrets = tmp_path / "bin", tmp_path / "secrets"
    for directory in (programs, secrets, tmp_path / "ca"):
        directory.mkdir()
    (tmp_path / "ca" / "ca.pem").touch()
    environ = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "SECRETS": str(secrets)}
    environ["SANDQ_NODE__DATA_DIR"] = str(tmp_path)
    for name, script in (("sandq", "true"), ("python3", "printf half; exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    setup = ["sh", str(DEPLOY / "compose" / "setup.sh")]
    assert subprocess.run(setup, env=environ, check=False).returncode == 1
    assert not [*tmp_path.rglob("cluster.secret")]
    (programs / "python3").unlink()
    subprocess.run(setup, env=environ, check=True)
    own = {node: (secrets / node / "cluster.secret").read_text() for node in ("node1", "node2", "node3")}
    assert len(own["node1"]) > 40 and len({*own.values()}) == 1, "all share it"


def test_node_of_compose_sees_no_key_of_another() -> None:
    services = compose()["services"]
    mounted = {
        name: {volume.split(":")[0] for volume in services[name]["volumes"] if ":/secrets" in volume}
        for name in ("node1", "node2", "node3")
    }
    assert sorted(map(len, mounted.values())) == [1, 1, 1] and len(set.union(*mounted.values())) == 3
    setup = dict(volume.split(":")[:2] for volume in services["setup"]["volumes"])
    assert all(setup[source] == f"/secrets/{name}" for name, (source,) in mounted.items())
    assert all("authority" not in str(services[name]["volumes"]) for name in mounted)


def test_pod_gets_its_own_certificate_and_key_alone(tmp_path: Path) -> None:
    pod = base("StatefulSet")["spec"]["template"]["spec"]
    (container,), (init,) = pod["containers"], pod["initContainers"]
    assert "tls-secret" not in [one["name"] for one in container["volumeMounts"]]
    files = {"cluster": ["cluster.secret"], "tls": ["ca.pem"]}
    files["tls"] += [f"sandq-{number}{end}.pem" for number in range(3) for end in ("", "-key")]
    for directory, names in files.items():
        (tmp_path / "from" / directory).mkdir(parents=True)
        for name in names:
            (tmp_path / "from" / directory / name).write_text(name)
    (tmp_path / "secrets").mkdir()
    script = init["command"][2].replace("/from", str(tmp_path / "from")).replace("/secrets", str(tmp_path / "secrets"))
    environ = os.environ | {"POD": "sandq-1", "HOST": "localhost"}
    subprocess.run(["sh", "-c", script], env=environ, check=True)
    found = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    own = {"tls.crt": "sandq-1.pem", "tls.key": "sandq-1-key.pem", "ca.crt": "ca.pem"}
    assert found == {"cluster.secret": "cluster.secret", **own}
    done = subprocess.run(["sh", "-c", script], env=environ | {"POD": "sandq-3"}, capture_output=True, text=True)
    assert done.returncode and "sandq-3.pem" in done.stderr


def test_each_example_of_scaling_is_the_only_one_for_its_consumers() -> None:
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        documents = list(yaml.safe_load_all(read(path)))
        targets = [one["spec"]["scaleTargetRef"]["name"] for one in documents if "scaleTargetRef" in one["spec"]]
        assert targets == ["billing-worker"], path

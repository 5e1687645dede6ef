"""The output of `make release`: files that match their checksums, and a bill of materials."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import sandq
from sandq.server.http import site
from tests.support.paths import ROOT
from tests.support.release import release

EPOCH = "1800000000"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", EPOCH)
        release().build(directory)
    return directory


def bill(built: Path) -> Any:
    return json.loads((built / "sbom.cdx.json").read_text(encoding="utf-8"))


def sums(directory: Path) -> dict[str, str]:
    lines = (directory / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: found for found, name in (line.split("  ") for line in lines)}


def test_checksums_are_of_all_files(built: Path) -> None:
    files = {path.name for path in built.iterdir()} - {"SHA256SUMS"}
    version = sandq.__version__
    assert files == {
        *(f"sandq-{version}-py3-none-any.whl", f"sandq_client-{version}-py3-none-any.whl", f"sandq-{version}.tar.gz"),
        f"sandq_workers-{version}-py3-none-any.whl",
        *("requirements.lock", "sbom.cdx.json"),
    }
    assert sums(built) == {name: hashlib.sha256((built / name).read_bytes()).hexdigest() for name in files}


def test_lock_lists_only_dependencies_of_the_wheels(built: Path) -> None:
    lock = (built / "requirements.lock").read_text(encoding="utf-8")
    names = re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.M)
    assert {"trio", "plyvel", "plyvel-next", "uvicorn", "zstandard", "idna"} <= {*names}
    assert not {"pytest", "mypy", "ruff", "httpx", "hatchling"} & {*names}, (
        "these packages are needed only for development"
    )
    whole = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in lock.splitlines() if not line.lstrip().startswith("#")]
    assert all(f"{line}\n" in whole for line in lines)
    for name in names:
        block = lock.partition(f"{name}==")[2].split("\n", 1)[1].partition("\n#")[0]
        assert "--hash=sha256:" in block, name


def test_bill_of_materials_lists_all_dependencies(built: Path) -> None:
    found = bill(built)
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["serialNumber"])
    assert found["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"
    assert found["metadata"]["component"]["purl"] == f"pkg:pypi/sandq@{sandq.__version__}"
    lock = (built / "requirements.lock").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.M))
    only_before = next(one for one in found["components"] if one["name"] == "plyvel")
    assert only_before["properties"] == [{"name": "sandq:marker", "value": "python_full_version < '3.12'"}]
    components = {one["name"]: one for one in found["components"]}
    assert {name: one["version"] for name, one in components.items()} == {k.lower(): v for k, v in pinned.items()}
    hashes = {found["content"] for one in components.values() for found in one["externalReferences"][0]["hashes"]}
    assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", lock))
    assert components["trio"]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert sum("licenses" in one for one in components.values()) > len(components) * 0.8


def test_bill_of_materials_has_the_dependency_tree(built: Path) -> None:
    found = bill(built)
    refs = {one["bom-ref"] for one in found["components"]} | {found["metadata"]["component"]["bom-ref"]}
    tree = {one["ref"]: one["dependsOn"] for one in found["dependencies"]}
    assert tree.keys() == refs and {need for needs in tree.values() for need in needs} <= refs
    trio = f"pkg:pypi/trio@{importlib.metadata.version('trio')}"
    assert trio in tree[f"pkg:pypi/sandq@{sandq.__version__}"]
    assert any(ref.startswith("pkg:pypi/outcome@") for ref in tree[trio])
    reached: set[str] = set()
    left = [found["metadata"]["component"]["bom-ref"]]
    while left:
        ref = left.pop()
        if ref not in reached:
            reached.add(ref)
            left += tree[ref]
    assert reached == refs, "each component must be reachable from the product"


def test_source_archive_has_files_for_build_and_deployment(built: Path) -> None:
    with tarfile.open(built / f"sandq-{sandq.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        *("Makefile", "pyproject.toml", "requirements.lock", "packaging/release.py", "packaging/client/sources.py"),
        *("deploy/container/Containerfile", "deploy/helm/sandq/Chart.yaml", "docs/releases.md", "LICENSE"),
    } <= names


@pytest.mark.long
def test_release_build_is_reproducible(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    release().build(tmp_path)
    assert sums(tmp_path) == sums(built)


def test_wheel_has_the_site_although_git_ignores_it(tmp_path: Path) -> None:
    tree, into = tmp_path / "tree", tmp_path / "dist"
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "sandq/__init__.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / "pyspark_sandq").mkdir()
    name = release().SITE_IN_WHEEL.relative_to(ROOT)
    (tree / name).parent.mkdir(parents=True)
    (tree / name).write_bytes(b"site")
    release()._hatch(tree, ("wheel", "sdist"), into, EPOCH)
    with zipfile.ZipFile(next(into.glob("*.whl"))) as wheel:
        assert wheel.read(name.as_posix()) == b"site"
    with tarfile.open(next(into.glob("*.tar.gz"))) as archive:
        assert not any(member.endswith("site.zip") for member in archive.getnames())
    assert site.__file__ is not None and Path(site.__file__).parent / "static" / "site.zip" == ROOT / name


def test_damaged_or_empty_site_prevents_a_release(tmp_path: Path) -> None:
    path = tmp_path / "site.zip"
    with zipfile.ZipFile(path, "w") as pages:
        pages.writestr("index.html", "<h1>sandq</h1>")
    whole = path.read_bytes()
    release().check_site(path)
    for wrong in (b"garbage", whole.replace(b"<h1>", b"<h2>", 1), whole.replace(b"index.html", b"other.html")):
        path.write_bytes(wrong)
        with pytest.raises(SystemExit, match=r"site\.zip is no whole documentation site: run `make docs` again"):
            release().check_site(path)


def test_release_without_a_site_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = release()
    monkeypatch.setattr(program, "check_committed", lambda root: None)
    monkeypatch.setattr(program, "SITE", tmp_path / "site.zip")
    monkeypatch.setattr(sys, "argv", ["release.py", "--out", str(tmp_path / "dist")])
    with pytest.raises(SystemExit, match=r"site\.zip is missing: run `make docs`"):
        program.main()
    assert not (tmp_path / "dist").exists()


def test_missing_or_large_site_prevents_a_release(tmp_path: Path) -> None:
    path = tmp_path / "site.zip"
    with pytest.raises(SystemExit, match=r"site\.zip is missing: run `make docs`"):
        release().check_site(path)
    path.write_bytes(bytes(3_000_000))
    with pytest.raises(SystemExit, match="no whole documentation site"):
        release().check_site(path)
    path.write_bytes(bytes(3_000_001))
    with pytest.raises(SystemExit, match=r"has 3,000,001 bytes, and at most 3,000,000 are allowed \(SITE_BYTES\)"):
        release().check_site(path)


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match="is not empty"):
        release().build(tmp_path)


def test_uncommitted_changes_prevent_a_release(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *args], cwd=tmp_path, check=True, capture_output=True)

    release().check_committed(tmp_path)  # an unpacked source archive, without Git
    git("init")
    (tmp_path / "one.py").touch()
    git("add", ".")
    git("commit", "-m", "one")
    (tmp_path / ".venv").symlink_to(tmp_path)
    release().check_committed(tmp_path)
    (tmp_path / "two.py").touch()
    with pytest.raises(SystemExit, match=r"not committed: two\.py: a release"):
        release().check_committed(tmp_path)
    (tmp_path / "one.py").write_text("changed")
    with pytest.raises(SystemExit, match=r"not committed: one\.py, and 1 more"):
        release().check_committed(tmp_path)

"""Tests of sandctl logins: the identity at a cluster and its storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandctl.options import login
from sandq.client import Identity, NewToken, Whoami
from sandq.model.errors import Unauthenticated
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient

TOKEN = "sandq_" + "x" * 43


class FakeAccess:
    """The part of `client.admin` about access rights."""

    def __init__(self) -> None:
        self.is_known = True
        self.asked: list[tuple[Any, ...]] = []

    async def whoami(self) -> Whoami:
        if not self.is_known:
            raise Unauthenticated("the token is not known here")
        return Whoami("token:ada", ["read:a.*"], None, {"topics": 3})

    async def create_token(self, name: str, grants: list[str], **more: Any) -> NewToken:
        self.asked.append(("create", name, grants, more))
        return NewToken(TOKEN, Identity(f"token:{name}", grants, NOW_MS, NOW_MS, {}, ""))

    async def rotate_token(self, name: str, **more: Any) -> NewToken:
        self.asked.append(("rotate", name, more))
        return NewToken(TOKEN, Identity(f"token:{name}", ["read"], NOW_MS, None, {}, ""))

    async def identities(self) -> list[Identity]:
        return [
            Identity("cert:till", ["writer"], NOW_MS, None, {}, ""),
            Identity("token:ada", ["read", "payments"], NOW_MS, NOW_MS, {"topics": 3}, "of Ada"),
        ]

    async def update_identity(self, principal: str, **more: Any) -> Identity:
        self.asked.append(("update", principal, more))
        return Identity(principal, ["read"], NOW_MS, None, {}, "")

    async def roles(self) -> dict[str, list[str]]:
        return {"payments": ["produce:pay.*"]}


@pytest.fixture
def access(client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAccess:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SANDCTL_SERVERS", "a:7170,b:7170")
    monkeypatch.delenv("SANDCTL_TOKEN", raising=False)
    client.admin = FakeAccess()  # type: ignore[assignment]
    return client.admin  # type: ignore[return-value]


def test_whoami_prints_the_grants(offline: Ctl, access: FakeAccess) -> None:
    found = json.loads(offline("whoami", "-o", "json").stdout)
    assert found == {"principal": "token:ada", "grants": ["read:a.*"], "expires": None, "quota": {"topics": 3}}
    assert "read:a.*" in offline("whoami").stdout


def test_login_keeps_a_token_that_is_known(offline: Ctl, access: FakeAccess, tmp_path: Path) -> None:
    result = offline("login", "--token-file", "-", input=TOKEN)
    assert result.exit_code == 0 and TOKEN not in result.output
    file = tmp_path / "sandq" / "login.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert login.token_of(None, ("b:7170",)) == TOKEN and login.token_of(None, ("c:7170",)) is None
    assert "a:7170, b:7170" in offline("logout").output
    assert login.read_logins() == {}
    access.is_known = False
    refused = offline("login", "--token-file", "-", input=TOKEN)
    assert refused.exit_code == 1 and login.read_logins() == {}


def test_a_login_file_of_others_is_not_believed(offline: Ctl, access: FakeAccess, tmp_path: Path) -> None:
    offline("login", "--token-file", "-", input=TOKEN)
    file = tmp_path / "sandq" / "login.json"
    file.chmod(0o644)
    refused = offline("logout")
    assert refused.exit_code == 2 and "chmod 600" in refused.stderr
    file.chmod(0o600)
    file.write_text("[]")
    assert "damaged" in offline("logout").stderr


def test_credentials_are_chosen_by_precedence(
    access: FakeAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: Ctl
) -> None:
    offline("login", "--token-file", "-", input="kept")
    assert login.credentials(None, None, False, ("a:7170",)) == {"token": "kept"}
    monkeypatch.setenv("SANDCTL_TOKEN", "of-environment")
    assert login.credentials(None, None, True, ("a:7170",)) == {"token": "of-environment", "insecure": True}
    (tmp_path / "file").write_text("of-file\n")
    assert login.credentials(None, str(tmp_path / "file"), False, ("a:7170",)) == {"token": "of-file"}
    assert login.credentials("given", str(tmp_path / "file"), False, ("a:7170",)) == {"token": "given"}


@pytest.mark.parametrize("content", ["", "two words", "schön"])
def test_file_without_a_token_is_reported(offline: Ctl, access: FakeAccess, tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    refused = offline("login", "--token-file", str(tmp_path / "file"))
    assert (
        refused.exit_code == 2
        and "not a valid token" in refused.stderr
        and (content or "no") not in refused.stderr[20:60]
    )


def test_a_token_is_printed_once_or_written(offline: Ctl, access: FakeAccess, tmp_path: Path) -> None:
    made = offline("token", "create", "app", "--grant", "writer:a.*", "--grant", "read", "--expires", "90d")
    assert made.stdout == f"{TOKEN}\n"
    assert access.asked[0][1:3] == ("app", ["writer:a.*", "read"])
    out = tmp_path / "app.token"
    quiet = offline("token", "rotate", "app", "--out", str(out))
    assert TOKEN not in quiet.output and out.read_text() == f"{TOKEN}\n" and out.stat().st_mode & 0o777 == 0o600
    assert access.asked[-1] == ("rotate", "app", {})
    offline("token", "rotate", "app", "--never-expires")
    assert access.asked[-1] == ("rotate", "app", {"expires": None})
    assert offline("token", "create", "app").exit_code == 2
    assert offline("token", "create", "app", "--grant", "read", "--out", str(tmp_path / "no" / "file")).exit_code == 2


def test_rotate_is_refused_if_the_token_cannot_be_saved(offline: Ctl, access: FakeAccess, tmp_path: Path) -> None:
    refused = offline("token", "rotate", "app", "--out", str(tmp_path))
    assert refused.exit_code == 2 and "name a file" in refused.stderr
    assert access.asked == []


def test_lists_show_grants(offline: Ctl, access: FakeAccess) -> None:
    assert "payments" in offline("token", "list").stdout and "till" not in offline("token", "list").stdout
    assert "cert:till" in offline("identity", "list").stdout
    roles = json.loads(offline("role", "list", "-o", "json").stdout)
    assert roles[0]["role"] == "admin" and roles[-1] == {
        "role": "payments",
        "grants": ["produce:pay.*"],
        "built_in": False,
    }
    offline("identity", "grant", "token:ada", "read:b.*")
    offline("identity", "ungrant", "token:ada", "read:b.*")
    assert access.asked == [("update", "token:ada", {"add": ["read:b.*"]}),
                            ("update", "token:ada", {"remove": ["read:b.*"]})]  # fmt: skip

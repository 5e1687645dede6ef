"""Tests of the setting of a push: its changes, and the part of it that is shown."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import InvalidSetting
from sandq.model.push import SECRETS_MOST, changed_push, shown
from sandq.model.webhooks import secret_text

URL = "https://example.com/hook"
A, B, C, D, E = [secret_text(bytes([n]) * 24) for n in range(5)]


def test_new_push_needs_a_url_and_a_secret() -> None:
    push = changed_push(None, {"url": URL, "secrets": [A]})
    assert push == {"url": URL, "secrets": [A], "concurrency": 10, "timeout_ms": 30_000}
    with pytest.raises(InvalidSetting, match="url: it is missing"):
        changed_push(None, {"secrets": [A]})
    with pytest.raises(InvalidSetting, match="secrets: one is needed"):
        changed_push(None, {"url": URL})


def test_unnamed_settings_stay() -> None:
    push = changed_push(None, {"url": URL, "secrets": [A], "concurrency": 3, "request_timeout": "5s"})
    assert changed_push(push, {}) == push
    assert changed_push(push, {"concurrency": 4}) == {**push, "concurrency": 4}
    assert changed_push(push, {"request_timeout": "1m"}) == {**push, "timeout_ms": 60_000}
    pausing = changed_push(push, {"on_429": "pause_group"})
    assert pausing == {**push, "on_429": "pause_group"} and changed_push(pausing, {}) == pausing
    assert changed_push(pausing, {"on_429": "snooze"}) == push


def test_url_changes_only_with_secrets_of_its_own() -> None:
    push = changed_push(None, {"url": URL, "secrets": [A]})
    other = f"{URL}/other"
    for given in ({"url": other}, {"url": other, "secrets": [B], "keep_secrets": True}, {"url": f"{URL}?a=1"}):
        with pytest.raises(InvalidSetting, match="another url needs secrets of its own"):
            changed_push(push, given)
    assert changed_push(push, {"url": other, "secrets": [B]})["secrets"] == [B]
    assert changed_push(push, {"url": other, "secrets": [A]})["secrets"] == [A], (
        "a caller that knows the secret may send it"
    )
    assert changed_push(push, {"url": URL}) == push


def test_secrets_are_exchanged_or_sign_together() -> None:
    push = changed_push(None, {"url": URL, "secrets": [A]})
    assert changed_push(push, {"secrets": [B]})["secrets"] == [B]
    both = changed_push(push, {"secrets": [B], "keep_secrets": True})
    assert both["secrets"] == [B, A]
    assert changed_push(both, {"secrets": [A], "keep_secrets": True})["secrets"] == [A, B]
    many = changed_push(both, {"secrets": [C, D, E], "keep_secrets": True})
    assert many["secrets"] == [C, D, E, B] and len(many["secrets"]) == SECRETS_MOST


@pytest.mark.parametrize(
    ("given", "about"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": 5}, "url"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 101}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": "3"}, "concurrency"),
        ({"on_429": "pause"}, "on_429"),
        ({"on_429": 429}, "on_429"),
        ({"request_timeout": "0s"}, "request_timeout"),
        ({"request_timeout": "11m"}, "request_timeout"),
        ({"request_timeout": 5}, "request_timeout"),
        ({"request_timeout": "soon"}, "request_timeout"),
        ({"secrets": []}, "secrets"),
        ({"secrets": A}, "secrets"),
        ({"secrets": ["x"]}, "secrets"),
        ({"secrets": [5]}, "secrets"),
        ({"secrets": [A, B, C, D, E]}, "secrets"),
        ({"keep_secrets": 1}, "keep_secrets"),
        ({"keep_secrets": True}, "keep_secrets"),
        ({"uri": URL}, "uri"),
    ],
)
def test_every_mistake_names_its_setting(given: dict[str, Any], about: str) -> None:
    push = changed_push(None, {"url": URL, "secrets": [A]})
    with pytest.raises(InvalidSetting) as refusal:
        changed_push(push, given)
    (mistake,) = refusal.value.details["mistakes"]
    assert mistake.startswith(f"{about}: ")


def test_every_mistake_is_reported() -> None:
    with pytest.raises(InvalidSetting) as refusal:
        changed_push(None, {"url": "x", "secrets": ["y"], "concurrency": 0, "z": 1})
    assert len(refusal.value.details["mistakes"]) == 4


def test_secrets_are_never_shown() -> None:
    push = changed_push(None, {"url": URL, "secrets": [A, B]})
    assert shown(push) == {
        "url": URL,
        "secrets": ["whsec_…AAAA", "whsec_…AQEB"],
        "concurrency": 10,
        "request_timeout": "30s",
    }
    with pytest.raises(InvalidSetting) as refusal:
        changed_push(push, {"secrets": [A + "!"]})
    assert A not in str(refusal.value.details)


def test_error_message_is_short_for_any_input() -> None:
    for given in ({"x" * 100_000: 1}, {f"n{number}": 1 for number in range(10_000)}, {"timeout": "9" * 100_000}):
        with pytest.raises(InvalidSetting) as refusal:
            changed_push(None, given)
        assert len(refusal.value.message) < 1000


def test_push_to_the_urls_of_messages_has_no_url_of_its_own() -> None:
    push = changed_push(None, {"targets": "message", "secrets": [A]})
    assert push == {"url": None, "secrets": [A], "concurrency": 10, "timeout_ms": 30_000}
    assert changed_push(push, {"concurrency": 3})["url"] is None, "a change keeps the targets"
    assert shown(push)["targets"] == "message" and shown(push)["url"] is None
    back = changed_push(push, {"url": URL, "secrets": [B]})
    assert back["url"] == URL and "targets" not in shown(back)


@pytest.mark.parametrize(
    ("old", "given", "words"),
    [
        ({}, {"targets": "messages"}, "targets: one of group, message"),
        ({}, {"targets": "message", "url": URL}, "each message has its own"),
        ({}, {"targets": "message", "headers": {"a": "b"}}, "headers: with targets message"),
        ({}, {"targets": "message", "on_429": "pause_group"}, "on_429: with targets message"),
        ({"targets": "message"}, {"url": URL, "secrets": None}, "another url needs secrets"),
        ({"targets": "message"}, {"targets": "group"}, "url: it is missing"),
        ({"url": URL}, {"targets": "message", "secrets": None}, "another url needs secrets"),
        ({"url": URL, "headers": {"a": "b"}}, {"url": "https://other.example/"}, "another url needs headers"),
        ({"url": URL, "headers": {"a": "b"}}, {"targets": "message"}, "another url needs headers"),
        ({"url": URL}, {"headers": {"host": "x"}}, "headers: host is set by the sender only"),
    ],
)
def test_contradicting_targets_are_refused(old: dict[str, Any], given: dict[str, Any], words: str) -> None:
    before = changed_push(None, {**old, "secrets": [A]}) if old else None
    with pytest.raises(InvalidSetting, match=words):
        changed_push(before, {"secrets": [A], **given})


def test_headers_are_kept_and_their_values_are_never_shown() -> None:
    push = changed_push(None, {"url": URL, "secrets": [A], "headers": {"Authorization": "Bearer x"}})
    assert push["headers"] == {"authorization": "Bearer x"}
    assert changed_push(push, {"concurrency": 3})["headers"] == push["headers"]
    assert shown(push)["headers"] == {"authorization": "…"} and "Bearer" not in str(shown(push))
    assert "headers" not in changed_push(push, {"headers": {}})
    moved = changed_push(push, {"url": "https://other.example/", "secrets": [B], "headers": {}})
    assert "headers" not in moved

"""Keys of compacted topics over HTTP."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import trio

from sandq.model.partitioning import partition_for
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.http_requests import KEYS, Web, path, put, value_of

WRONG = "01HN7K2B6R0000000001000000"
"""A version that no key has."""


async def code(web: Web, method: str, at: str, body: Any = None, **headers: str) -> int:
    """Send a request with headers and return its status. Check that an error is a problem document."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    options: dict[str, Any] = {} if body is None else {"json": body}
    response = await web.raw(method, at, headers=named, **options)
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
    return response.status_code


async def test_put_get_delete(keys: Web) -> None:
    response = await keys.raw("PUT", f"{KEYS}/a", json={"text": "1", "headers": {"by": "ada", "b": {"base64": "/w=="}}})
    made = response.json()
    assert response.status_code == 200 and response.headers["etag"] == f'"{made["version"]}"'
    assert made == {"key": "a", "version": made["version"], "partition": partition_for(b"a", 3)}
    response = await keys.raw("GET", f"{KEYS}/a")
    assert response.headers["etag"] == f'"{made["version"]}"'
    assert response.json() == {
        **made, "text": "1", "headers": {"by": "ada", "b": {"base64": "/w=="}}, "expires_at": None
    }  # fmt: skip
    gone = await keys.delete(f"{KEYS}/a", 200)
    assert gone.keys() == {"version"} and gone["version"] > made["version"]
    missing = await keys.get(f"{KEYS}/a", 404)
    assert (missing["code"], missing["topic"], missing["key"]) == ("NOT_FOUND", "t", "a")
    assert (await keys.delete(f"{KEYS}/a", 200))["version"] > gone["version"], "deleting a missing key is not an error"


VALUES: list[tuple[dict[str, Any], bytes]] = [
    ({"text": "grüße"}, "grüße".encode()),
    ({"text": ""}, b""),
    ({"value": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
    ({"json": {"a": [1, None]}}, b'{"a":[1,null]}'),
    ({"json": None}, b"null"),
    ({"text": "x", "value": None}, b"x"),
]


async def test_values(keys: Web) -> None:
    for body, value in VALUES:
        await keys.ask("PUT", f"{KEYS}/a", body, 200)
        found = await keys.get(f"{KEYS}/a")
        assert value_of(found) == value, body


NO_VALUES: list[tuple[object, str]] = [
    ({}, "one of text, value and json"),
    ({"value": None}, "use DELETE"),
    ({"text": None}, "one of text, value and json"),
    ({"text": "a", "json": 1}, "one of text, value and json"),
    ({"text": "a", "ttl": 0}, "ttl"),
    ({"text": "a", "ttl": "soon"}, "soon"),
    ({"text": "a", "headers": {"b": {"base64": "?"}}}, "headers.b: not base64"),
    ({"text": "a", "delay": "1s"}, "body.delay"),
    ({"text": "a", "version": WRONG}, "body.version"),
    ({"value": "?"}, "not base64"),
    ([], "body"),
]


async def test_invalid_values_are_rejected(keys: Web) -> None:
    for body, words in NO_VALUES:
        assert words in (await keys.ask("PUT", f"{KEYS}/a", body, 400))["detail"], body
        await keys.get(f"{KEYS}/a", 404)


ODD_KEYS: list[str] = [
    "app/theme",
    "/",
    "a//b",
    "a/",
    "%",
    "%2F",
    "a b",
    "a+b",
    "?x=1",
    "#",
    "grüße",
    "日本",
    "a\nb",
    "\n",
    "\x00",
    "messages",
    "keys/keys",
    "\ufffd",
    "a\\b",
    "../x",
]


async def test_encoded_keys_round_trip(keys: Web) -> None:
    for key in ODD_KEYS:
        made = await keys.ask("PUT", path(key), {"text": "v"}, 200)
        assert made["key"] == key and made["partition"] == partition_for(key.encode(), 3)
        assert (await keys.get(path(key)))["key"] == key
        short = base64.urlsafe_b64encode(key.encode()).decode()
        assert (await keys.get(f"{KEYS}/{short}", encoding="base64"))["version"] == made["version"], key
        assert (await keys.get(f"{KEYS}/{short.rstrip('=')}", encoding="base64"))["version"] == made["version"], key
        assert [row["key"] for row in (await keys.get(KEYS))["keys"]] == [key]
        await keys.delete(path(key), 200)


async def test_slashes_as_they_are(keys: Web) -> None:
    await put(keys, "app/a/b", "v")
    assert (await keys.get(f"{KEYS}/app/a/b"))["text"] == (await keys.get(f"{KEYS}/app%2fa%2Fb"))["text"] == "v"


async def test_keys_that_clients_take_for_something_else(keys: Web) -> None:
    for key, name in ((".", "Lg"), ("..", "Li4=")):
        assert (await keys.ask("PUT", f"{KEYS}/{name}?encoding=base64", {"text": "v"}, 200))["key"] == key
        assert (await keys.get(f"{KEYS}/{name}", encoding="base64"))["key"] == key


async def test_keys_that_are_no_text(keys: Web) -> None:
    name = base64.urlsafe_b64encode(b"\xff\xfe\x00").decode()
    made = await keys.ask("PUT", f"{KEYS}/{name}?encoding=base64", {"text": "v"}, 200)
    assert base64.b64decode(made["key_base64"]) == b"\xff\xfe\x00"
    assert (await keys.get(f"{KEYS}/{name}", encoding="base64"))["text"] == "v"
    refused = await keys.get(path(b"\xff\xfe\x00"), 400)
    assert "encoding=base64" in refused["detail"]
    assert len((await keys.get(KEYS))["keys"]) == 1


NOT_MEANT: list[tuple[str, dict[str, Any], str]] = [
    (f"{KEYS}/", {}, "path.key"),
    (f"{KEYS}/%zz", {}, "%25"),
    (f"{KEYS}/a%", {}, "%25"),
    (f"{KEYS}/%ff", {}, "encoding=base64"),
    (f"{KEYS}/a", {"encoding": "base64"}, "not base64url"),
    (f"{KEYS}/QR", {"encoding": "base64"}, "not base64url"),
    (f"{KEYS}/a+b_", {"encoding": "base64"}, "not base64url"),
    (f"{KEYS}/a/b_", {"encoding": "base64"}, "not base64url"),
    (f"{KEYS}/a", {"encoding": "hex"}, "query.encoding"),
    (f"{KEYS}/a", {"consistency": "some"}, "query.consistency"),
    (f"{KEYS}/a", {"stale": "true"}, "no such parameter"),
    ("/topics/t%2Fkeys/a", {}, "percent-encoded"),
    ("/topics/t%2Fkeys%2Fa/keys/b", {}, "percent-encoded"),
    (f"{KEYS}?prefix=%ff", {}, "percent-encoded UTF-8"),
    (KEYS, {"prefix": "a", "stop": "b"}, "prefix and stop"),
    (KEYS, {"limit": 0}, "query.limit"),
    (KEYS, {"limit": 1001}, "query.limit"),
    (KEYS, {"start": "a", "encoding": "base64"}, "start"),
    ("/topics/t/changes", {"wait": "2m"}, "at most 60s"),
    ("/topics/t/changes", {"wait": "-1"}, "-1"),
    ("/topics/t/changes", {"after": "soon"}, "after"),
    ("/topics/t/changes", {"limit": 1001}, "query.limit"),
    ("/topics/t/changes", {"latest": "perhaps"}, "query.latest"),
]


async def test_contradictory_parameters_are_rejected(keys: Web) -> None:
    for at, params, words in NOT_MEANT:
        found = await keys.ask("GET", at, None, 400, **({"params": params} if params else {}))
        assert words in found["detail"] and found["retriable"] is False, (at, params, found)


async def test_conditions(keys: Web) -> None:
    first = await put(keys, "a", "1")
    assert await code(keys, "PUT", f"{KEYS}/a", {"text": "2"}, if_none_match="*") == 412
    refused = await keys.raw("PUT", f"{KEYS}/a", json={"text": "2"}, headers={"If-Match": f'"{WRONG}"'})
    assert refused.status_code == 412 and refused.headers["etag"] == f'"{first}"'
    told = refused.json()
    assert (told["code"], told["version"], told["retriable"]) == ("VERSION_CHANGED", first, False)
    done = await keys.raw("PUT", f"{KEYS}/a", json={"text": "2"}, headers={"If-Match": f'"{first.lower()}"'})
    second = done.json()["version"]
    assert done.status_code == 200 and done.headers["etag"] == f'"{second}"' and second > first
    assert await code(keys, "DELETE", f"{KEYS}/a", if_match=f'"{first}"') == 412
    assert (await keys.get(f"{KEYS}/a"))["text"] == "2"
    assert await code(keys, "DELETE", f"{KEYS}/a", if_match=f'"{second}"') == 200
    gone = await keys.raw("DELETE", f"{KEYS}/a", headers={"If-Match": f'"{second}"'})
    assert gone.status_code == 412 and gone.json()["version"] is None and "etag" not in gone.headers
    assert await code(keys, "PUT", f"{KEYS}/a", {"text": "3"}, if_match=f'"{second}"') == 412
    assert await code(keys, "PUT", f"{KEYS}/a", {"text": "3"}, if_none_match="*") == 200


async def test_matching_etag_returns_not_modified(keys: Web) -> None:
    version = await put(keys, "a", "1")
    for tags in (f'"{version}"', f'W/"{version}"', f'"{WRONG}", "{version}"', "*"):
        response = await keys.raw("GET", f"{KEYS}/a", headers={"If-None-Match": tags})
        assert (response.status_code, response.content) == (304, b""), tags
        assert response.headers["etag"] == f'"{version}"' and "content-type" not in response.headers
    for tags in (f'"{WRONG}"', f'W/"{WRONG}", "x"', '""'):
        assert await code(keys, "GET", f"{KEYS}/a", if_none_match=tags) == 200
    assert await code(keys, "GET", f"{KEYS}/b", if_none_match="*") == 404
    head = await keys.raw("HEAD", f"{KEYS}/a")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", f'"{version}"')


NO_CONDITIONS: list[tuple[str, dict[str, str], str]] = [
    ("PUT", {"If-Match": "*"}, "not *, a list or a weak tag"),
    ("PUT", {"If-Match": WRONG}, "in quotes"),
    ("PUT", {"If-Match": f'"{WRONG}", "{WRONG}"'}, "not *, a list or a weak tag"),
    ("PUT", {"If-Match": f'W/"{WRONG}"'}, "not *, a list or a weak tag"),
    ("PUT", {"If-Match": ""}, "in quotes"),
    ("PUT", {"If-Match": '"abc"'}, "26 characters"),
    ("PUT", {"If-None-Match": f'"{WRONG}"'}, "it is *"),
    ("PUT", {"If-None-Match": "*", "If-Match": f'"{WRONG}"'}, "one of them"),
    ("DELETE", {"If-Match": "*"}, "not *, a list or a weak tag"),
    ("DELETE", {"If-None-Match": "*"}, "GET and PUT"),
    ("GET", {"If-Match": f'"{WRONG}"'}, "PUT and DELETE"),
    ("GET", {"If-None-Match": WRONG}, "in quotes"),
    ("GET", {"If-None-Match": f'"{WRONG}",'}, "in quotes"),
]


async def test_conditions_that_are_none(keys: Web) -> None:
    version = await put(keys, "a", "1")
    for method, headers, words in NO_CONDITIONS:
        body = {"text": "2"} if method == "PUT" else None
        found = await keys.ask(method, f"{KEYS}/a", body, 400, headers=headers)
        assert words in found["detail"], found
        assert (await keys.get(f"{KEYS}/a"))["version"] == version


async def test_two_condition_headers_are_a_list(keys: Web) -> None:
    version = await put(keys, "a", "1")
    lines = [("If-Match", f'"{version}"'), ("If-Match", f'"{WRONG}"')]
    response = await keys.client.put(f"{KEYS}/a", json={"text": "2"}, headers=httpx.Headers(lines))
    assert response.status_code == 400
    told = await keys.raw("GET", f"{KEYS}/a", headers=httpx.Headers([("If-None-Match", tag) for _, tag in lines]))
    assert told.status_code == 304


async def test_one_of_many_concurrent_creates_succeeds(keys: Web) -> None:
    codes: list[int] = []

    async def create(number: int) -> None:
        codes.append(await code(keys, "PUT", f"{KEYS}/a", {"text": str(number)}, if_none_match="*"))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(create, number)
    assert sorted(codes) == [200] + [412] * 7


async def test_lists_and_pages(keys: Web) -> None:
    names = [f"k/{number:02}" for number in range(25)]
    for name in names:
        await put(keys, name, f"v {name}", headers={"n": 1})
    await put(keys, "j", "x")
    await put(keys, "l", "x")
    found: list[str] = []
    start: dict[str, str] = {}
    sizes = []
    while True:
        page = await keys.get(KEYS, prefix="k/", limit=10, **start)
        sizes.append(len(page["keys"]))
        found += [row["key"] for row in page["keys"]]
        assert all(row.keys() == {"key", "version", "expires_at", "partition"} for row in page["keys"])
        if page["next"] is None:
            break
        start = {"start": page["next"]}
    assert found == names and sizes == [10, 10, 5]
    (row,) = (await keys.get(KEYS, start="k/07", stop="k/08", values=True))["keys"]
    assert (row["key"], row["text"], row["headers"]) == ("k/07", "v k/07", {"n": 1})
    assert [row["key"] for row in (await keys.get(KEYS, start="k/24"))["keys"]] == ["k/24", "l"]
    assert await keys.get(KEYS, start="z") == {"keys": [], "next": None}
    assert await keys.get(KEYS, start="b", stop="a") == {"keys": [], "next": None}
    response = await keys.raw("GET", KEYS, params={"prefix": "k/"}, headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["key"] for line in response.text.splitlines()] == names


async def test_pages_of_keys_that_are_no_text(keys: Web) -> None:
    for data in (b"a", b"\xfe", b"\xff"):
        name = base64.urlsafe_b64encode(data).decode()
        await keys.ask("PUT", f"{KEYS}/{name}?encoding=base64", {"text": "v"}, 200)
    assert "encoding=base64" in (await keys.get(KEYS, 400, limit=1))["detail"]
    page = await keys.get(KEYS, limit=1, encoding="base64")
    assert (page["keys"][0]["key"], page["next"]) == ("a", "_g")
    rest = await keys.get(KEYS, start=page["next"], encoding="base64")
    assert [row["key_base64"] for row in rest["keys"]] == ["/g==", "/w=="] and rest["next"] is None


async def test_a_page_ends_with_a_megabyte(keys: Web) -> None:
    for number in range(3):
        await put(keys, f"k{number}", "x" * 700_000)
    page = await keys.get(KEYS, values=True)
    assert (len(page["keys"]), page["next"]) == (2, "k2")


async def test_a_value_goes_in_time(keys: Web, hand: HandClock) -> None:
    await put(keys, "a", "1", ttl="10m")
    found = await keys.get(f"{KEYS}/a")
    assert found["expires_at"].endswith("Z")
    hand.forward(601)
    await keys.get(f"{KEYS}/a", 404)
    assert (await keys.get(KEYS))["keys"] == []


async def test_stale_reads(keys: Web) -> None:
    version = await put(keys, "a", "1")
    response = await keys.raw("GET", f"{KEYS}/a", params={"consistency": "stale"})
    assert response.headers["etag"] == f'"{version}"' and int(response.headers["sandq-stale-ms"]) >= 0
    assert "sandq-stale-ms" not in (await keys.raw("GET", f"{KEYS}/a")).headers
    missing = await keys.raw("GET", f"{KEYS}/b", params={"consistency": "stale"})
    assert missing.status_code == 404 and int(missing.headers["sandq-stale-ms"]) >= 0
    assert len((await keys.get(KEYS, consistency="stale"))["keys"]) == 1

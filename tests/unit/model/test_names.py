from __future__ import annotations

import pytest

from sandq.model.errors import InvalidName, InvalidRequest
from sandq.model.names import RULE, TENANT_RULE, check_name, check_new_topic, check_tenant


@pytest.mark.parametrize("name", ["a", "0", "orders", "Orders.eu-west_1", "a" * 249, "9..__--"])
def test_good(name: str) -> None:
    assert check_name("topic", name) is name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "-a",
        "_a",
        " a",
        "a ",
        "a b",
        "a/b",
        "a\n",
        "a\x00",
        "é",
        "a" * 250,
        "\u0661",
        None,
        5,
        b"a",
        ["a"],
    ],
)
def test_bad(name: object) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("topic", name)
    assert caught.value.message.startswith("topic name ")
    assert RULE in caught.value.message


def test_error_names_the_kind_and_the_shortened_name() -> None:
    with pytest.raises(InvalidName, match=r"^group name 'a b' is not allowed; the rule: 1 to 249 of A-Z"):
        check_name("group", "a b")
    with pytest.raises(InvalidName) as caught:
        check_name("group", "/" * 100_000)
    assert len(caught.value.message) < 300
    assert "(100000 characters)" in caught.value.message
    assert caught.value.details == {"what": "group", "name": "/" * 80}


@pytest.mark.parametrize("name", ["a", "default", "acme.mail.eu", "A-1_b", "-", "0." + "x" * 253])
def test_names_of_tenants(name: str) -> None:
    assert check_tenant(name) is name


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".a", "a..b", "a b", "é", "a/b", "a\n", "x" * 256, "*", "a.*", b"a", 5]
)
def test_names_that_no_tenant_has(name: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^tenant: ") as caught:
        check_tenant(name)
    assert len(caught.value.message) < 300
    assert TENANT_RULE in caught.value.message or not isinstance(name, str)


def test_names_of_new_topics_do_not_begin_with_the_reserved_prefix() -> None:
    for name in ("sandq", "sandq-orders", "sandqs.orders", "Sandq.orders", "my.sandq.orders"):
        assert check_new_topic(name) is name
    for name in ("sandq.limits", "sandq.", "sandq." + "x" * 243):
        with pytest.raises(InvalidName, match=r"names that begin with 'sandq\.' are reserved") as caught:
            check_new_topic(name)
        assert len(caught.value.message) < 300
    with pytest.raises(InvalidName, match="the rule: "):
        check_new_topic("sandq/limits")

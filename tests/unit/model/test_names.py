from __future__ import annotations

import pytest

from sandq.model.errors import InvalidName
from sandq.model.names import RULE, check_name


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


def test_it_says_what_and_shows_the_name_but_not_all_of_a_long_one() -> None:
    with pytest.raises(InvalidName, match=r"^group name 'a b' is not allowed; the rule: 1 to 249 of A-Z"):
        check_name("group", "a b")
    with pytest.raises(InvalidName) as caught:
        check_name("group", "/" * 100_000)
    assert len(caught.value.message) < 300
    assert "(100000 characters)" in caught.value.message
    assert caught.value.details == {"what": "group", "name": "/" * 80}

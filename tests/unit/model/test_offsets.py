from __future__ import annotations

import pytest

from sandq.model import offsets
from sandq.model.errors import InvalidRequest


def test_offset_format_is_unchanged() -> None:
    offset = offsets.pack(0x0102_0304_0506, 0x1112_1314_1516, 0x2_1222, 0x333)
    assert offset.hex() == "010203040506" + "111213141516" + "21222" + "333"
    assert offsets.unpack(offset) == (0x0102_0304_0506, 0x1112_1314_1516, 0x2_1222, 0x333)
    assert offsets.to_text(offset) == "01081G81862491650N2RGJ48SK"
    assert offsets.to_text(offsets.FIRST) == "0" * 26
    assert offsets.to_text(offsets.LAST) == "7" + "Z" * 25
    assert offsets.token(0x1112_1314_1516, 0x2122) == 0x1112_1314_1516_2122
    assert offsets.lease_text(7, 12, 655_360_001) == "7.12.655360001"


@pytest.mark.parametrize(
    "parts",
    [(-1, 0, 0, 0), (2**48, 0, 0, 0), (0, 2**48, 0, 0), (0, -1, 0, 0), (0, 0, 2**20, 0), (0, 0, 0, 4096)],
)
def test_parts_that_do_not_fit(parts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidRequest):
        offsets.pack(*parts)


@pytest.mark.parametrize("offset", [b"", bytes(15), bytes(17)])
def test_offsets_of_other_lengths_are_refused(offset: bytes) -> None:
    for function in (offsets.unpack, offsets.deliver_ms, offsets.to_text, offsets.behind):
        with pytest.raises(InvalidRequest):
            function(offset)
    for pair in ((offset, bytes(16)), (bytes(16), offset)):
        with pytest.raises(InvalidRequest):
            offsets.distance(*pair)
    with pytest.raises(InvalidRequest):
        offsets.shift(offset, 1)


def test_run_ends_at_the_last_position() -> None:
    last = offsets.pack(1, 2, offsets.PLACE_MAX, 3)
    assert offsets.run(last, 1) == [last]
    assert offsets.run(last, 0) == []
    for wrong in (
        lambda: offsets.run(last, 2),
        lambda: offsets.shift(last, 1),
        lambda: offsets.shift(last, -(2**20)),
    ):
        with pytest.raises(InvalidRequest):
            wrong()


@pytest.mark.parametrize(
    ("parts", "behind"),
    [
        ((5, 6, 7, 8), (5, 6, 8, 8)),
        ((5, 6, offsets.PLACE_MAX, 8), (5, 7, 0, 8)),
        ((5, offsets.U48_MAX, offsets.PLACE_MAX, 8), (6, 0, 0, 8)),
        ((0, 0, 0, 0), (0, 0, 1, 0)),
    ],
)
def test_next_position_is_the_next_one_of_the_partition(
    parts: tuple[int, int, int, int], behind: tuple[int, int, int, int]
) -> None:
    assert offsets.unpack(offsets.behind(offsets.pack(*parts))) == behind


@pytest.mark.parametrize("partition", [0, 8, offsets.PARTITION_MAX])
def test_offset_after_the_last_position_is_refused(partition: int) -> None:
    with pytest.raises(InvalidRequest, match="behind the last one"):
        offsets.behind(offsets.pack(offsets.U48_MAX, offsets.U48_MAX, offsets.PLACE_MAX, partition))


def test_ceiling() -> None:
    ceiling = offsets.ceiling(5, 6)
    assert offsets.pack(5, 6, 2**20 - 1, 4095) == ceiling < offsets.pack(5, 7, 0, 0)


@pytest.mark.parametrize("partition", [0, 1, 31, 32, 1023, 1024, 4095])
def test_partition_is_read_from_the_text(partition: int) -> None:
    for place in (0, 1, 7, 8, offsets.PLACE_MAX):
        assert offsets.partition_of_text(offsets.to_text(offsets.pack(5, 6, place, partition))) == partition


def test_text_is_read_as_crockford_says() -> None:
    offset = offsets.pack(1, 1, 1, 1)
    text = offsets.to_text(offset)
    assert offsets.from_text(text.lower()) == offset
    assert offsets.from_text(text.replace("0", "o").replace("1", "l")) == offset
    assert offsets.from_text(text.replace("0", "O").replace("1", "I")) == offset


@pytest.mark.parametrize(
    "text",
    [
        *("", "0" * 25, "0" * 27, "8" + "0" * 25, "Z" * 26, "0" * 25 + "U", "0" * 25 + "-", "0" * 25 + " "),
        *("+" + "0" * 25, "0_" * 13, "0" * 25 + "\n", "\u0660" * 26, "\u0131" + "0" * 25, "0" * 1_000_000),
    ],
)
def test_garbage_is_no_text(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        offsets.from_text(text)
    assert len(caught.value.message) < 250


def test_text_must_be_text() -> None:
    for wrong in (None, 5, b"0" * 26):
        with pytest.raises(InvalidRequest):
            offsets.from_text(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            offsets.parse_lease(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "a.b.c",
            "-1.0.0",
            "1.0.0 ",
            "01.0.0",
            "1.00.0",
            "1.4096.0",
            "+1.0.0",
            "1_0.0.0",
        ),
        *(f"1.0.{2**64}", f"{2**64}.0.0", "1.0.1" + "0" * 50_000, "\u0661.0.0"),
    ],
)
def test_garbage_is_no_lease(text: str) -> None:
    with pytest.raises(InvalidRequest):
        offsets.parse_lease(text)


@pytest.mark.parametrize(("index", "place"), [(-1, 0), (2**48, 0), (0, 2**16), (0, -1)])
def test_token_parts_that_do_not_fit(index: int, place: int) -> None:
    with pytest.raises(InvalidRequest):
        offsets.token(index, place)


@pytest.mark.parametrize("partition", [0, 1, 7, 4095])
def test_of_partition_returns_smallest_offset_not_below(partition: int) -> None:
    own = offsets.pack(5, 6, 7, partition)
    assert offsets.of_partition(own, partition) == own
    behind = (int.from_bytes(own, "big") + 1).to_bytes(16, "big")
    assert offsets.of_partition(behind, partition) == offsets.pack(5, 6, 8, partition)
    assert offsets.of_partition(offsets.pack(5, 6, 7, 0), partition) == own
    last = offsets.pack(5, 6, offsets.PLACE_MAX, 4095)
    assert offsets.of_partition(last, partition) == (last if partition == 4095 else offsets.pack(5, 7, 0, partition))
    assert offsets.of_partition(offsets.LAST, partition) == offsets.LAST

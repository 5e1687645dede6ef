"""Random expressions for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.schedules.brute_force import DAYS, MONTHS


def _part(numbers: st.SearchStrategy[int], high: int) -> st.SearchStrategy[str]:
    """A number, a range or a step."""
    steps = st.integers(1, max(high // 2, 2))
    pairs = st.tuples(numbers, numbers).map(sorted)
    return st.one_of(
        numbers.map(str),
        pairs.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        st.tuples(pairs, steps).map(lambda drawn: f"{drawn[0][0]}-{drawn[0][1]}/{drawn[1]}"),
        st.tuples(numbers, steps).map(lambda drawn: f"{drawn[0]}/{drawn[1]}"),
    )


def _field(
    numbers: st.SearchStrategy[int], high: int, *more: st.SearchStrategy[str], star: bool = True
) -> st.SearchStrategy[str]:
    parts = st.one_of(_part(numbers, high), *more)
    lists = st.lists(parts, min_size=1, max_size=3).map(",".join)
    if not star:
        return lists
    steps = st.integers(1, high).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), steps, lists)


_SIXTY = st.one_of(st.sampled_from([0, 1, 15, 29, 30, 45, 59]), st.integers(0, 59))
_WEEKDAY = st.one_of(st.integers(0, 7).map(str), st.sampled_from(DAYS))
_NTH = st.tuples(_WEEKDAY, st.integers(1, 5)).map(lambda drawn: f"{drawn[0]}#{drawn[1]}")
_LAST = st.integers(0, 7).map(lambda weekday: f"{weekday}L")

SECONDS = _field(_SIXTY, 59)
MINUTES = _field(_SIXTY, 59)
# Prefer the first hours of a day: daylight saving time begins and ends then.
HOURS = _field(st.one_of(st.integers(0, 4), st.sampled_from([22, 23]), st.integers(0, 23)), 23)
DAYS_OF_MONTH = _field(
    st.one_of(st.sampled_from([1, 28, 29, 30, 31]), st.integers(1, 31)), 31, st.sampled_from(["L", "LW"])
)
MONTHS_OF_YEAR = _field(st.integers(1, 12), 12, st.sampled_from(MONTHS[1:]))
DAYS_OF_WEEK = _field(st.integers(0, 7), 7, _WEEKDAY, _NTH, _LAST)
_MOSTLY_ANY = st.sampled_from(["*", "*", "*"])

# Most dates are `*`, because these tests are about the time of day.
TIMES = st.tuples(
    MINUTES,
    HOURS,
    _MOSTLY_ANY | DAYS_OF_MONTH,
    _MOSTLY_ANY | MONTHS_OF_YEAR,
    _MOSTLY_ANY | DAYS_OF_WEEK,
).map(" ".join)
TIMES_WITH_SECONDS = st.tuples(SECONDS, MINUTES, HOURS).map(lambda drawn: " ".join([*drawn, "* * *"]))
DATES = st.tuples(DAYS_OF_MONTH, MONTHS_OF_YEAR, DAYS_OF_WEEK).map(lambda drawn: " ".join(["0 12", *drawn]))

"""Who goes next to a server."""

from __future__ import annotations

from qpdsl.executor.remote.waiting_line import Place, WaitingLine, prefix_of
from qpdsl.executor.requests.request import Owner, Priority


class Line:
    """A line whose places have names, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.line: WaitingLine[Place] = WaitingLine(lambda: self.now)
        self.names: dict[Place, str] = {}

    def put(self, name: str, owner: Owner, tokens: tuple[int, ...] = (), priority: Priority = 0) -> Place:
        place = Place(owner, priority, prefix_of(tokens))
        self.names[place] = name
        self.line.put(place)
        return place

    def take(self) -> str | None:
        place = self.line.take()
        return None if place is None else self.names[place]

    def order(self) -> str:
        return "".join(iter(self.take, None))  # type: ignore[arg-type]


def test_one_owner_goes_in_the_order_of_arrival() -> None:
    line = Line()
    for name in "abcd":
        line.put(name, Owner("row"))
    assert line.order() == "abcd"


def test_many_samples_of_a_row_do_not_hold_up_the_others() -> None:
    line = Line()
    for name in "aaaaaaaa":
        line.put(name, Owner("first"))
    line.put("b", Owner("second"))
    line.put("c", Owner("third"))
    assert line.order() == "abc" + "a" * 7


def test_the_urgent_go_first_then_the_earliest_deadline_then_run_ahead() -> None:
    line = Line()
    line.put("f", Owner("ahead", urgency=5), priority=1)
    line.put("d", Owner("plain"))
    line.put("c", Owner("late", deadline=9.0))
    line.put("b", Owner("early", deadline=3.0))
    line.put("a", Owner("urgent", urgency=1))
    assert line.order() == "abcdf"


def test_promoted_work_is_needed_work() -> None:
    line = Line()
    place = line.put("a", Owner("first"), priority=1)
    line.put("b", Owner("second"))
    line.line.promote(place)
    assert line.order() == "ab"


def test_prompts_that_share_a_prefix_stand_together() -> None:
    line = Line()
    for number, name in enumerate("axbycz"):
        tokens = tuple(range(20)) if name in "abc" else tuple(range(100, 120))
        line.put(name, Owner(str(number)), tokens)
    assert line.order() == "abcxyz"


def test_no_prefix_waits_for_ever() -> None:
    line = Line()
    line.put("x", Owner("other"), tuple(range(100, 120)))
    line.line.take()
    line.put("x", Owner("another"), tuple(range(200, 220)))
    for number in range(200):
        line.put("a", Owner(str(number)), tuple(range(100, 120)))
    assert line.order().index("x") <= 70


def test_what_is_to_wait_waits_and_goes_back_to_its_place() -> None:
    line = Line()
    first = line.put("a", Owner("row"))
    line.put("b", Owner("row"))
    line.put("c", Owner("row"))
    assert line.take() == "a"
    first.not_before = 5.0
    line.line.returned(first)
    line.line.put(first)
    assert line.take() == "b"
    line.now = 6.0
    assert line.order() == "ac"


def test_who_left_is_not_taken() -> None:
    line = Line()
    place = line.put("a", Owner("row"))
    line.put("b", Owner("row"))
    assert line.line.remove(place) and not line.line.remove(place)
    assert line.order() == "b" and len(line.line) == 0

"""Who goes next to a server."""

from __future__ import annotations

from qpdsl.executor.remote.request_queue import QueuedRequest, RequestQueue, prefix_of
from qpdsl.executor.requests.request import Client, Priority


class NamedQueue:
    """A queue whose requests have names, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: RequestQueue[QueuedRequest] = RequestQueue(lambda: self.now)
        self.names: dict[QueuedRequest, str] = {}

    def put(self, name: str, client: Client, tokens: tuple[int, ...] = (), priority: Priority = 0) -> QueuedRequest:
        request = QueuedRequest(client, priority, prefix_of(tokens))
        self.names[request] = name
        self.queue.put(request)
        return request

    def take(self) -> str | None:
        request = self.queue.take()
        return None if request is None else self.names[request]

    def order(self) -> str:
        return "".join(iter(self.take, None))  # type: ignore[arg-type]


def test_one_owner_goes_in_the_order_of_arrival() -> None:
    queue = NamedQueue()
    for name in "abcd":
        queue.put(name, Client("row"))
    assert queue.order() == "abcd"


def test_many_samples_of_a_row_do_not_hold_up_the_others() -> None:
    queue = NamedQueue()
    for name in "aaaaaaaa":
        queue.put(name, Client("first"))
    queue.put("b", Client("second"))
    queue.put("c", Client("third"))
    assert queue.order() == "abc" + "a" * 7


def test_the_urgent_go_first_then_the_earliest_deadline_then_run_ahead() -> None:
    queue = NamedQueue()
    queue.put("f", Client("ahead", urgency=5), priority=1)
    queue.put("d", Client("plain"))
    queue.put("c", Client("late", deadline=9.0))
    queue.put("b", Client("early", deadline=3.0))
    queue.put("a", Client("urgent", urgency=1))
    assert queue.order() == "abcdf"


def test_promoted_work_is_needed_work() -> None:
    queue = NamedQueue()
    request = queue.put("a", Client("first"), priority=1)
    queue.put("b", Client("second"))
    queue.queue.promote(request)
    assert queue.order() == "ab"


def test_prompts_that_share_a_prefix_stand_together() -> None:
    queue = NamedQueue()
    for number, name in enumerate("axbycz"):
        tokens = tuple(range(20)) if name in "abc" else tuple(range(100, 120))
        queue.put(name, Client(str(number)), tokens)
    assert queue.order() == "abcxyz"


def test_no_prefix_waits_for_ever() -> None:
    queue = NamedQueue()
    queue.put("x", Client("other"), tuple(range(100, 120)))
    queue.queue.take()
    queue.put("x", Client("another"), tuple(range(200, 220)))
    for number in range(200):
        queue.put("a", Client(str(number)), tuple(range(100, 120)))
    assert queue.order().index("x") <= 70


def test_what_is_to_wait_waits_and_goes_back_to_its_place() -> None:
    queue = NamedQueue()
    first = queue.put("a", Client("row"))
    queue.put("b", Client("row"))
    queue.put("c", Client("row"))
    assert queue.take() == "a"
    first.not_before = 5.0
    queue.queue.returned(first)
    queue.queue.put(first)
    assert queue.take() == "b"
    queue.now = 6.0
    assert queue.order() == "ac"


def test_who_left_is_not_taken() -> None:
    queue = NamedQueue()
    request = queue.put("a", Client("row"))
    queue.put("b", Client("row"))
    assert queue.queue.remove(request) and not queue.queue.remove(request)
    assert queue.order() == "b" and len(queue.queue) == 0

"""What stands in the way of a goal, from what was recorded of steps."""

from __future__ import annotations

from benchmarks.obstacles import StepObstacles, of_search

_PRODUCT = {"name": "join", "seconds": 0.08, "two": 0.05, "bytes": 10, "operations": 4000}
_READ = {"name": "head", "seconds": 0.03, "two": 0.02, "bytes": 1000, "operations": 10}
_OTHER = {"name": "norm", "seconds": 0.01, "two": 0.01, "bytes": 0, "operations": 0}


def obstacles(work: str) -> StepObstacles:
    case = {
        "work": work,
        "one": {"whole": 0.14, "host": 0.015},
        "two": {"whole": 0.1, "host": 0.01},
        "parts": [_PRODUCT, _READ, _OTHER],
    }
    return StepObstacles({"costs": {"bandwidth": [5e4, 1e5], "speed": [5e4, 1e5]}, "cases": [case]})


def test_a_step_is_told_by_its_parts_and_by_what_binds_them() -> None:
    said = obstacles("a step of 8 row(s)").step(8, 1.0)
    assert "join 50% (80% of arithmetic), head 20% (50% of memory), norm 10%" in said
    assert "host 10%, waits 10%" in said
    # 40 ms and 10 ms of what binds, 10 ms that nothing binds, 10 ms of the host.
    assert "1.43 with every part at the machine's limit" in said


def test_a_second_thread_is_told_by_the_gain_of_each_part() -> None:
    said = obstacles("a step of 8 row(s)").second_thread(8)
    assert "join 1.60 (80% of arithmetic), head 1.50 (50% of memory), norm 1.00" in said
    assert "2.00 with every part at the machine's limit" in said


def test_what_was_not_recorded_has_none() -> None:
    assert StepObstacles(None).read(1, 64, 1.0) == obstacles("other").step(8, 1.0) == ""


def test_a_search_is_told_by_what_it_draws_and_what_it_computes() -> None:
    ours = {"seconds_a_problem": 10.0, "sampled_a_problem": 2000.0, "computed_a_problem": 8000.0}
    theirs = {"seconds_a_problem": 15.0, "sampled_a_problem": 2500.0}
    said = of_search({"planned": ours, "loop": theirs}, "loop")
    assert "2,000 tokens a problem against 2,500, 5.00 ms a token against 6.00" in said
    assert "8,000 of ours go through the model, 1.25 ms each" in said

"""What `peek` and the searches made of it and of `split … by` do."""

from __future__ import annotations

from collections import Counter

from tests.support.executor.programs import HEADER, arguments, compiled, run_all, shipped, texts


def test_a_peek_leaves_rows_as_they_were_and_their_columns_what_it_saw() -> None:
    head = HEADER + 'program p(q: text) -> float {\n chat user=q\n generate llm n=3 stop="\\n\\n" temperature=0.8\n'
    rest = " generate llm n=1 temperature=0\n score prm\n"
    given = [{"q": text} for text in texts(2)]
    peeked = run_all(compiled(head + " peek {\n" + rest + " }\n return score\n}"), given)
    plain = run_all(compiled(head + " return tokens\n}"), given)
    gone_on = run_all(compiled(head + rest + " return score\n}"), given)
    for one, two, three in zip(peeked, plain, gone_on, strict=True):
        assert [{**row.columns, "score": 0} for row in one.rows] == [{**row.columns, "score": 0} for row in two.rows]
        assert [row.columns["score"] for row in one.rows] == [row.columns["score"] for row in three.rows]
        assert [row.generated for row in one.rows] == [row.generated for row in two.rows]


def test_rebase_stays_within_its_budget_and_votes_over_what_is_finished() -> None:
    plan = shipped("rebase")
    given = [arguments(plan, problem=problem, budget=6, depth=12) for problem in texts(3)]
    for result in run_all(plan, given):
        assert result.error is None and result.value is not None
    body = HEADER + "program p(q: text) -> int {\n chat user=q\n split 6\n repeat 12 until all(finished) {\n"
    body += ' generate llm stop="\\n\\n" temperature=0.8\n score prm\n split 6 by score temperature=0.2\n }\n'
    for result in run_all(compiled(body + " return len(text)\n}"), [{"q": text} for text in texts(3)]):
        assert len(result.rows) == 6 and all(row.columns["finished"] for row in result.rows)
        assert max(Counter(row.path for row in result.rows).values()) == 1


def test_lookahead_judges_a_step_by_what_follows_it() -> None:
    plan = shipped("lookahead")
    given = [arguments(plan, problem=problem, width=2, expand=2, depth=8) for problem in texts(2)]
    for result in run_all(plan, given):
        assert result.error is None and result.value is not None


def test_rounds_that_are_gathered_begin_alike_and_fewer_are_the_first_of_more() -> None:
    def rows(loop: str) -> list[tuple[object, ...]]:
        head = f"{HEADER}program p(q: text) -> int {{\n chat user=q\n split 2\n let before = group\n"
        (result,) = run_all(compiled(f"{head} {loop}\n return count()\n}}"), [{"q": texts(1)[0]}])
        assert result.value == len(result.rows)
        return [(row.path, row.columns["before"], row.columns["text"]) for row in result.rows]

    block = '{ generate llm n=2 temperature=0.8 stop="\\n\\n" | where tokens > 0 }'
    four, two = rows(f"repeat 4 gather {block}"), rows(f"repeat 2 gather {block}")
    assert four[: len(two)] == two and len(four) == 2 * len(two) == 16
    assert [path[:2] for path, _, _ in four[:4]] == [(0, 0), (0, 0), (1, 0), (1, 0)] and len(
        {p for p, _, _ in four}
    ) == 16
    assert rows(f"repeat 4 gather until count() >= 5 {block}") == two
    assert rows(f"repeat 4 gather until true {block}") == two[:4]
    inside = rows(f"repeat 2 gather {{ repeat 2 gather {block} }}")
    assert len(inside) == 16 and len({path for path, _, _ in inside}) == 16

import re
from html.parser import HTMLParser

from qpdsl.runs.compare.runs_page import runs_page
from qpdsl.runs.compare.side import side_of
from tests.support.compared_runs import RIGHT, kept, row, side
from tests.support.tui.read_page import Page

VOID = {"meta", "br", "rect", "line", "path"}


class Tags(HTMLParser):
    """Checks that what is opened is closed, and keeps the texts and what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == [] and tags.loads == []
    return tags


def test_several_runs_stand_against_the_first() -> None:
    verdicts = [number % 3 > 0 for number in range(60)]
    others = [[right and number > flips for number, right in enumerate(verdicts)] for flips in (1, 20)]
    sides = [side(own, f"run-{n}", parameters={"n": 4 * n}) for n, own in enumerate([verdicts, *others], 1)]
    page = runs_page(sides)
    texts = read(page).texts
    assert page.count('<svg class="plot"') == 1  # There are no seconds to plot.
    assert {"n", "4", "8", "12", "p of all (Holm)", "level", "A and B", "A and C"} <= set(texts)
    assert any(text.startswith("C is worse: -23.3 points") for text in texts)
    assert any(text.startswith("no difference can be told: -1.7 points") for text in texts)


def test_one_run_shows_its_wrong_answers_first() -> None:
    texts = read(runs_page([side([True, False, True], "alone")])).texts
    assert texts.index("row 1") < texts.index("row 0") < texts.index("row 2")
    assert "Against A" not in texts and "alone" in texts


def test_nothing_that_a_model_wrote_is_markup() -> None:
    evil = "</td></table><script>alert(1)</script>{{body}}<img src=x>"
    first = side_of(
        [kept([row(0, evil, asked=evil, fields={evil: evil}), row(1, RIGHT, fields={evil: "b"})], source=evil)]
    )
    second = side_of([kept([row(0, RIGHT, asked=evil), row(1, RIGHT)], program=evil, plan=evil)])
    for page in (runs_page([first]), runs_page([first, second])):
        assert page.count("<script>") == 1
        assert evil in read(page).texts


def test_a_run_without_rows_or_verdicts_has_a_page() -> None:
    read(runs_page([side([], "empty")]))
    texts = read(runs_page([side_of([kept([row(0, "1", correct=None, reference=None)])])])).texts
    assert "–" in texts


def test_one_run_shows_answers_grades_errors_and_candidates() -> None:
    candidates = [
        {"answer": "42", "correct": True},
        {"answer": "7", "correct": False},
        {"answer": "42", "correct": True},
    ]
    rows = [
        row(0, RIGHT, asked="How many?", candidates=candidates),
        row(1, "7"),
        row(2, None, correct=False, error="the server answers 500"),
    ]
    shown = Page.of(runs_page([side_of([kept(rows)])])).table("Problems")
    assert [(one["problem"], one["right"], one["error"]) for one in shown] == [
        ("row 2", "✖ no", "the server answers 500"),
        ("row 1", "✖ no", ""),
        ("row 0", "✔ yes", ""),
    ]
    assert shown[2]["candidates"] == "✔ 42 ×2, ✖ 7 ×1" and shown[2]["right answer"] == "42"
    assert list(shown[2])[-1] == "asked" and shown[2]["asked"] == "How many?"
    # Without an error or a candidate there is no column for it.
    assert not {"error", "candidates"} & set(Page.of(runs_page([side([True, False], "alone")])).table("Problems")[0])


def test_each_cell_has_the_title_of_its_column() -> None:
    """On a narrow screen the row of titles is gone, and each cell stands beside its own."""
    page = runs_page([side([True, False], "one"), side([True, True], "two", parameters={"n": 2})])
    cells = re.findall("<td[^>]*>[^<]", page)
    assert len(cells) == len(re.findall("<td[^>]* data-title=", page)) > 20


def test_a_reader_finds_its_way() -> None:
    for sides in ([side([True, False], "one")], [side([True, False], "one"), side([True, True], "two")]):
        page = Page.of(runs_page(sides))
        assert page.faults == [] and [level for level, _ in page.headings] == [1, *[2] * (len(page.headings) - 1)]


def test_what_differs_is_told_of_each_run_and_not_as_that_of_all() -> None:
    first, second = side([True, False], "run-1", grader="math 1"), side([True, True], "run-2", grader="exact 1")
    page = Page.of(runs_page([first, second]))
    assert [row["grader"] for row in page.table("Runs")] == ["math 1", "exact 1"]
    before = page.parts[""]
    assert any("graded by `math 1` and by `exact 1`" in line for line in before) and "grader" not in before

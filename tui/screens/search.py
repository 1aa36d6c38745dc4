"""Search: how one row of the input was searched, as a tree of candidates."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from qpdsl.executor.events.events import REPLICA_SIGN
from qpdsl.grammar.printable import cells, one_line, printable, shorten
from qpdsl.grammar.words import SEARCH_PRIOR
from qpdsl.tui.screens import candidate
from qpdsl.tui.screens.plan_boxes import failure_text
from qpdsl.tui.screens.rows import SIGNS, row_copies, row_facts
from qpdsl.tui.screens.view import Copies, View
from qpdsl.tui.state.plan import PlanTree
from qpdsl.tui.state.run_state import RowState
from qpdsl.tui.state.search import CandidateNode, Key, SearchTree, TreeLine, flattened, ranking_of
from qpdsl.tui.state.verdict import Highlights
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.line_list import LineList
from qpdsl.tui.widgets.palette import Palette
from qpdsl.tui.widgets.panel import Panel
from qpdsl.tui.widgets.table import Heading, TableColumn, fitted, row

_BAR = 6
# Seconds that a row stays on the screen after it has ended, so that rows that take no time can be seen.
_STAY = 3.0
# Cells for the answer in the first line.
_ANSWER = 32
# Fates of candidates that still count.
_STANDING = ("answer", "finished", "kept", "open", "agreed")
COLUMNS = (
    TableColumn("round", "round", 5, weight=20),
    TableColumn("score", "score", 6, weight=90),
    TableColumn("bar", "", _BAR, right=False, weight=30),
    TableColumn("text", "candidate", 0, right=False, weight=100, least=24),
    TableColumn("visits", "visits", 6, weight=60),
    TableColumn("value", "value", 6, weight=50),
    TableColumn(SEARCH_PRIOR, "prior", 6, weight=40),
    TableColumn("tokens", "tok", 4, weight=10),
)


class TreeLines(LineList):
    """The candidates. A folded node hides the nodes below it."""

    def __init__(self) -> None:
        super().__init__(id="tree-lines")
        self.folded: set[Key] = set()
        self.tree_shown = SearchTree()
        self.plan: PlanTree | None = None
        self.lit = Highlights()
        self.columns: Sequence[TableColumn] = COLUMNS

    def show(self, tree: SearchTree | None, plan: PlanTree | None, row_state: RowState | None, *, living: bool) -> None:
        self.tree_shown, self.plan = tree or SearchTree(), plan
        self.lit = Highlights.of(self.tree_shown, row_state)
        self.columns = _told_columns(self.tree_shown)
        lines = [] if tree is None else flattened(tree, self.folded, living=living)
        self.set_items(lines, lambda line: line.node.key)

    @property
    def node(self) -> CandidateNode | None:
        return None if self.item is None else self.item.node

    def line(self, index: int, width: int, palette: Palette) -> Text:
        line: TreeLine = self.items[index]
        node = line.node
        strokes = line.strokes
        room = max(width // 3, 8)
        if len(strokes) > room:
            strokes = "‥" + strokes[len(strokes) - room + 1 :]
        tree, record = self.tree_shown, node.record
        fate = tree.fate(node)
        sign, _, colour = candidate.FATES[fate]
        text = Text(strokes, style=palette.faint).append(f"{sign} ", f"bold {getattr(palette, colour)}")
        folded = len(node.children) if node.key in self.folded else 0
        marks = candidate.marks(line, self.lit, palette, folded)
        shown = candidate.in_line(record.step) or candidate.name(node, self.plan)
        shown = shorten(shown, max(_text_room(self.columns, width) - cells(text.plain) - cells(marks.plain), 8))
        lit = (
            f"bold {palette.good}" if node.key in self.lit.way else palette.text if fate in _STANDING else palette.muted
        )
        text.append(shown, lit)
        text.append_text(marks)
        part = tree.part(node)
        values = {
            "round": Text(str(node.round) if node.round else "", style=palette.muted),
            "score": Text(figures.score(node.score) if node.scores else "", style=palette.scale(part)),
            "bar": Text(figures.bar(part or 0.0, _BAR) if node.scores else "", style=palette.scale(part)),
            "text": text,
            **{name: Text(candidate.walked(node, name), style=palette.second) for name in candidate.WALKED},
            "tokens": Text(str(record.tokens or ""), style=palette.muted),
        }
        return row(fitted(self.columns, width), values)


def _told_columns(tree: SearchTree) -> Sequence[TableColumn]:
    """Those that have something to show."""
    empty = set() if any(node.scores for node in tree.nodes()) else {"score", "bar"}
    empty |= set() if any(node.round for node in tree.nodes()) else {"round"}
    # Visits, values and priors say more of a tree search than bars, which have their room.
    walked = {name for node in tree.nodes() if "visits" in node.values for name in node.values}
    empty |= {*candidate.WALKED} - walked | ({"bar"} if walked else set())
    return tuple(column for column in COLUMNS if column.name not in empty)


def _text_room(columns: Sequence[TableColumn], width: int) -> int:
    return next((own for column, _, own in fitted(columns, width) if column.name == "text"), width)


class SearchView(View):
    """`row` is the row of the input that was picked; None follows the run.

    A row that is followed is followed to its end, and is on the screen for `_STAY` seconds at least; then comes the row
    with the latest news. `instance` and `searched` are the row and the tree that are drawn: whatever happens between
    two drawings reads these, since the run goes on meanwhile.
    """

    LOW = 18
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "row(-1)", "Row", key_display="[ ]"),
        Binding("right_square_bracket", "row(1)", "Next row", show=False),
        Binding("f", "follow", "Follow"),
        Binding("x", "living", "Pruned"),
        Binding("space", "fold", "Fold", show=False),
        Binding("o", "panel", "Ranking"),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.row: str | None = None
        self.instance: str | None = None
        self.searched: SearchTree | None = None
        self._followed: str | None = None
        self._followed_in = self.state
        self._since = 0.0
        self.living = False
        self.ranking = False

    def compose(self) -> ComposeResult:
        yield Static(id="search-row", classes="foot")
        yield Static(id="search-verdict")
        with Horizontal(classes="panes"):
            with Vertical():
                yield Heading(COLUMNS)
                yield TreeLines()
            with VerticalScroll(classes="side", can_focus=False):
                yield Static(id="search-side")
        yield Panel("enter", id="search-panel")
        yield Static(id="search-foot", classes="foot")

    def open_row(self, row: str) -> None:
        """Shows the search of a row from now on."""
        self.row = row
        lines = self.query_one(TreeLines)
        lines.folded.clear()
        lines.set_reactive(LineList.cursor, 0)
        lines.by_hand = False
        self.draw()

    def draw(self) -> None:
        lines = self.query_one(TreeLines)
        before = self.instance
        self.instance = self._following(lines) if self.row is None else self.row
        self.searched = None if self.instance is None else self.state.trees.get(self.instance)
        if self.instance != before:
            lines.folded.clear()
        row_state = None if self.instance is None else self.state.rows.get(self.instance)
        lines.show(self.searched, self.state.plan, row_state, living=self.living)
        if self.searched is not None and not lines.by_hand:
            self._point_at_what_is_new(lines)
        heading = self.query_one(Heading)
        heading.show(lines.columns)
        heading.visible = bool(lines.count)
        self.query_one("#search-row", Static).update(self._head(Palette.of(self.app)))
        self._show_verdict()
        self.query_one("#search-foot", Static).update(
            candidate.legend(self.searched, Palette.of(self.app), self.size.width)
        )
        self._show_candidate()

    def on_line_list_moved(self) -> None:
        self._show_candidate()

    def on_line_list_entered(self, event: LineList.Entered) -> None:
        lines = self.query_one(TreeLines)
        tree, node = self.searched, lines.node
        row_state = self.state.rows.get(self.instance or "")
        if tree is not None and node is not None:
            self.app.push_screen(Details(self._facts(tree, node)))
        elif row_state is not None:
            self.app.push_screen(Details(row_facts(self.state, row_state)))

    def words(self) -> tuple[str, ...]:
        lines, row_state = self.query_one(TreeLines), self.state.rows.get(self.instance or "")
        if (node := lines.node) is None:
            return ("candidate", "round")
        told = [candidate.FATES[lines.tree_shown.fate(node)][1]]
        if row_state is not None and row_state.correct is False:
            told += ["lost here"] if row_state.lost is not None else ["went wrong here"]
        titles = [column.title for column in lines.columns if column.title]
        return (*told, *titles, "×4", "goes on ×2", "margin at the cut", "right answers", "log p", "coloured tokens")

    def copies(self) -> Copies:
        lines, row_state = self.query_one(TreeLines), self.state.rows.get(self.instance or "")
        told: Copies = []
        if (node := lines.node) is not None:
            told = [("text of the candidate", node.record.step), ("path", ".".join(map(str, node.path)))]
        return told + ([] if row_state is None else row_copies(self.state, row_state))

    def action_row(self, by: int) -> None:
        trees = self.state.trees
        rows = [id_ for id_, row_state in self.state.rows.items() if id_ in trees or row_state.why is not None]
        rows += [id_ for id_ in trees if id_ not in self.state.rows]
        if rows:
            at = rows.index(self.instance) if self.instance in rows else 0
            self.open_row(rows[(at + by) % len(rows)])

    def action_follow(self) -> None:
        self.row = self._followed = None
        self.query_one(TreeLines).by_hand = False
        self.draw()

    def action_living(self) -> None:
        self.living = not self.living
        self.draw()

    def action_panel(self) -> None:
        self.ranking = not self.ranking
        self._show_candidate()

    def action_fold(self) -> None:
        lines = self.query_one(TreeLines)
        line: TreeLine | None = lines.item
        if line is not None and (line.node.children or line.others or line.node.key in lines.folded):
            lines.folded ^= {line.node.key}
            self.draw()

    def _following(self, lines: TreeLines) -> str | None:
        """The row to follow now."""
        state, now = self.state, monotonic()
        if self._followed in state.trees and self._followed_in is state:
            row_state = state.rows.get(self._followed or "")
            going = row_state is None or row_state.ended is None
            if going or lines.by_hand or now < self._since + _STAY:
                return self._followed
        if state.latest != self._followed:
            self._since = now
        self._followed, self._followed_in = state.latest, state
        return self._followed

    def _point_at_what_is_new(self, lines: TreeLines) -> None:
        """Puts the cursor on a lost right answer, else on the step that went wrong, the answer, or the best yet."""
        order = {"answer": 2, "finished": 1, "kept": 1, "open": 1}
        tree = lines.tree_shown

        def worth(at: int) -> tuple[bool, int, int, float]:
            node: CandidateNode = lines.items[at].node
            fate = order.get(tree.fate(node), 0)
            return fate == 2, node.round, fate, node.score or 0.0

        lit = lines.lit
        wanted = lit.lost if lit.lost is not None else None if lit.fell is None else lit.fell.node
        here = (at for at, line in enumerate(lines.items) if wanted is line.node or wanted in line.others)
        if wanted is not None and (at := next(here, None)) is not None:
            lines.point(at)
            return
        lines.point(max(range(len(lines.items)), key=worth, default=0))

    def _head(self, palette: Palette) -> Text:
        instance = self.instance
        if instance is None:
            return Text(f" {self._why_empty(None)}", style=palette.muted)
        row_state = self.state.rows.get(instance)
        text = Text.assemble((f" {one_line(instance)}", f"bold {palette.accent}"))
        text.append(" following " if self.row is None else " ", palette.muted)
        if row_state is not None and row_state.why is not None:
            text.append(f" ✖ {failure_text(self.state, row_state.failed_in, row_state.why)} ", palette.bad)
        tree = self.searched
        if tree is None:
            text.append(f" {self._why_empty(row_state)}", palette.muted)
            text.truncate(max(self.size.width, 20), overflow="ellipsis")
            return text
        text.append(f" {candidate.fates(tree)}", palette.muted)
        if row_state is not None and row_state.answer is not None:
            sign, colour = SIGNS[row_state.status]
            answer = shorten(one_line(row_state.answer), _ANSWER)
            text.append(f"  {sign} {answer}", f"bold {getattr(palette, colour)}")
            if row_state.correct is False and row_state.reference is not None:
                text.append(f" (right: {one_line(row_state.reference)})", palette.muted)
        if tree.scaled:
            text.append("  bars: from the least to the greatest of a round", palette.muted)
        if row_state is not None and row_state.asked:
            text.append(f"  {one_line(row_state.asked)}", palette.muted)
        text.truncate(max(self.size.width, 20), overflow="ellipsis")
        return text

    def _show_verdict(self) -> None:
        """A line for each thing that the search as a whole says."""
        palette, shown = Palette.of(self.app), self.query_one("#search-verdict", Static)
        said = list(candidate.verdict_lines(self.state, self.instance or "", palette))
        for line in said:
            line.truncate(max(self.size.width - 2, 20), overflow="ellipsis")
        shown.display = bool(said)
        shown.update(Text("\n").join(said))

    def _why_empty(self, row_state: RowState | None) -> str:
        """Why a row has no candidates here."""
        if any(REPLICA_SIGN in name for name in self.state.models):
            return "replicas send no candidates"
        if self.instance is None:
            return "no candidates yet"
        if row_state is None or (row_state.started is None and row_state.ended is None):
            return "waits for its turn"
        if row_state.why is not None:
            return "no candidates"
        if self.state.missed_rows or self.state.lost:
            return "its candidates came before anybody watched"
        return "no candidates yet" if row_state.ended is None else "no candidates are known of it"

    def _failure(self, palette: Palette) -> Text:
        """Why the row failed, in full, where there is no candidate to show."""
        row_state = self.state.rows.get(self.instance or "")
        if row_state is None or row_state.why is None:
            return Text()
        text = Text(f"✖ {printable(row_state.why, tabs=False)}", style=palette.bad)
        return text.append(f"\n\n{one_line(row_state.asked)}", palette.muted)

    def _show_candidate(self) -> None:
        palette = Palette.of(self.app)
        tree, node = self.searched, self.query_one(TreeLines).node
        panel, side = self.query_one(Panel), self.query_one("#search-side", Static)
        if tree is None or node is None:
            wide = self.has_class("wide")
            panel.update("" if wide else self._failure(palette))
            side.update(self._failure(palette) if wide else "")
        elif self.has_class("wide"):
            side.update(self._side(tree, node, palette))
        else:
            panel.update(self._panel(tree, node, palette))

    def _panel(self, tree: SearchTree, node: CandidateNode, palette: Palette) -> Text:
        width = max(self.size.width - 2, 20)
        ranking = ranking_of(tree, node)
        if self.ranking and ranking is not None:
            return ranking_table(tree, node, width, palette, 5)
        lines: Sequence[Text] = (
            candidate.fate_line(tree, node, self.state.plan, palette),
            candidate.step_text(node, palette),
            Text("  ").join(
                part
                for part in (
                    candidate.votes(ranking, palette),
                    candidate.values(node, palette),
                    candidate.sureness(node, palette),
                )
                if part
            ),
        )
        return Text("\n").join(lines)

    def _side(self, tree: SearchTree, node: CandidateNode, palette: Palette) -> Text:
        width = max(self.query_one("#search-side", Static).size.width, 40)
        text = candidate.fate_line(tree, node, self.state.plan, palette).append("\n\n")
        row_state = self.state.rows.get(self.instance or "")
        if row_state is not None and row_state.asked:
            text.append(one_line(row_state.asked), palette.muted).append("\n\n")
        text.append_text(candidate.solution(tree, node, self.state.plan, palette)).append("\n")
        shown = candidate.values(node, palette)
        if shown:
            text.append_text(shown).append("\n\n")
        ranking = ranking_of(tree, node)
        if ranking is not None:
            text.append_text(candidate.groups_table(tree, ranking, palette, width))
            text.append_text(candidate.ranking_head(ranking, self.state.plan, palette))
            text.append_text(candidate.ranking_table(tree, ranking, node, width, palette, 24)).append("\n")
        if node.record.pieces:
            known = "and their probabilities" if node.record.logprobs else "whose probabilities nobody asked for"
            text.append("tokens", f"bold {palette.text}").append(f"  {known}", palette.muted)
            text.append_text(candidate.writers(node, palette)).append("\n")
            text.append_text(candidate.token_table(node, width, palette))
        return text

    def _facts(self, tree: SearchTree, node: CandidateNode) -> Facts:
        palette = Palette.of(self.app)
        width = max(min(self.app.size.width - 12, 96), 30)
        facts = Facts(candidate.fate_line(tree, node, self.state.plan, palette).plain)
        facts.add("path", ".".join(map(str, node.path)))
        facts.add("solution", Text("\n").append_text(candidate.solution(tree, node, self.state.plan, palette)))
        if node.values or node.matches:
            facts.add("columns", candidate.values(node, palette))
        ranking = ranking_of(tree, node)
        if ranking is not None:
            facts.add(
                "ranking",
                candidate.ranking_head(ranking, self.state.plan, palette).append_text(
                    candidate.ranking_table(tree, ranking, node, width, palette, 64)
                ),
            )
        if node.record.pieces:
            told = candidate.writers(node, palette).append("\n")
            facts.add("tokens", told.append_text(candidate.token_table(node, width, palette)))
        return facts


def ranking_table(tree: SearchTree, node: CandidateNode, width: int, palette: Palette, most: int) -> Text:
    """The ranking around the node's place, as many lines as the small panel has."""
    ranking = ranking_of(tree, node)
    assert ranking is not None
    lines = candidate.ranking_table(tree, ranking, node, width, palette, len(ranking.ranked)).split("\n")
    here = next((at for at, line in enumerate(lines) if line.plain.startswith("▸")), 0)
    first = max(0, min(here - most // 2, len(lines) - most))
    return Text("\n").join(lines[first : first + most])

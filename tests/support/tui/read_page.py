"""A page as somebody reads it who cannot see it: its headings, its texts, the cells of its tables."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "input", "br", "rect", "line", "path", "circle"}
# What stands on a line of its own.
_BLOCKS = {"p", "li", "div", "section", "tr", "dt", "dd", "h1", "h2", "summary", "caption", "pre", "ol", "ul", "table"}


class Page(HTMLParser):
    """`parts` are the lines of each section by its heading, those before the first under the `h1`'s.

    `headings` are (level, text), `faults` what a reader could not make out, `focused` what the keyboard reaches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, list[str]] = {"": []}
        self.headings: list[tuple[int, str]] = []
        self.faults: list[str] = []
        self.focused: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._line = ""
        self._part = ""
        self._tables: dict[str, list[list[str]]] = {}
        self._caption = ""
        self._scopes = 0

    @classmethod
    def of(cls, html: str) -> Page:
        page = cls()
        page.feed(html)
        page.close()
        page._end_line()
        assert not page._open, page._open
        return page

    @property
    def lines(self) -> list[str]:
        return [line for part in self.parts.values() for line in part]

    def table(self, caption: str) -> list[dict[str, str]]:
        """The rows of a table, by the titles of their columns."""
        head, *rows = self._tables[caption]
        return [dict(zip(head, row, strict=True)) for row in rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        if tag in _BLOCKS:
            self._end_line()
        if tag not in _VOID:
            self._open.append((tag, own))
        elif tag == "br":
            self._end_line()
        if tag in ("a", "button", "input", "summary", "select") or "tabindex" in own:
            self.focused.append(tag)
            if own.get("tabindex", "0") != "0":
                self.faults.append(f"{tag} is out of order")
        if tag in ("svg", "input") and not own.get("aria-label"):
            self.faults.append(f"{tag} without words")
        if own.get("role") in ("img", "region") and not own.get("aria-label"):
            self.faults.append(f"{tag} without words")
        if tag == "table":
            self._caption = ""
        elif tag == "tr":
            self._tables.setdefault(self._caption, []).append([])
        elif tag in ("th", "td"):
            if not self._caption:
                self.faults.append("a table without a caption")
            if tag == "th" and own.get("scope") not in ("col", "row"):
                self.faults.append("a heading of a table without a scope")
            self._tables[self._caption][-1].append("")
            self._line += " "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if tag in _BLOCKS:
            self._end_line()
        opened, _ = self._open.pop()
        assert opened == tag, (opened, tag)

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "style" in tags or "script" in tags or any(own.get("aria-hidden") == "true" for _, own in self._open):
            return
        self._line += data
        if "caption" in tags:
            self._caption += data
        if "td" in tags or "th" in tags:
            self._tables[self._caption][-1][-1] += data
        for tag in ("h1", "h2", "h3"):
            if tag in tags:
                self.headings.append((int(tag[1]), data))
                if tag == "h2":
                    self._part = data
                    self.parts[data] = []

    def _end_line(self) -> None:
        line = " ".join(self._line.split())
        if line:
            self.parts[self._part].append(line)
        self._line = ""

"""The letter of a choice: A, (b), "The answer is C.", or the text of the option itself."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from qpdsl.executor.runtime.operators.answers import boxed
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, right_texts
from qpdsl.runs.graders.text_answer import normalized

# What is written around a letter and says nothing: LaTeX's text commands, dollar signs, emphasis, quotation marks.
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm)?|math(?:bf|rm)|bf)\b\s*|\\(?=[()\[\]])|[${}*_`\"“”]|(?<!\w)['‘’]|['‘’](?!\w)"
)
_SPACES = re.compile(r"\s*\n\s*|\s+")
_ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.IGNORECASE | re.DOTALL)
_ALONE = re.compile(r"\s*[(\[]?\s*([A-Za-z])\s*[)\]]?[\s.:,;!)]*")
# A letter by itself. `a` and `I` are words too where another follows, unless that gives a reason.
_LETTER = r"""[(\[]?\s*(?<![\w'’-])(?:
    (?P<word>[AaIi])(?=\s*[)\].,:;!?]|\s*$|\s*\n|\s+(?:because|since|as|due|based|which|(?:and|or)\s+[(\[]?(?-i:[A-Z])\b)\b)
  | (?P<letter>[B-HJ-Zb-hj-z])
)(?![\w'’+=-])(?:\s*[)\]])?+(?:\s*(?:,|and|or|&|/)\s*[(\[]?(?P<other>(?-i:[A-Z])\b(?!\s+(?!(?:and|or)\s+[(\[]?(?-i:[A-Z])\b)(?-i:[a-z]))))?"""
_NOT_BUT = r"(?:not\s+(?:option\s+)?[(\[]?[A-Z][)\]]?,?\s+but(?:\s+rather)?\s+)?"
_THING = r"(?:(?:the\s+)?(?:option|choice|letter|answer)\s*:?\s+)?"
_SURELY = r"definitely|certainly|clearly|obviously|(?:most\s+)?likely|probably|therefore|thus|indeed|simply|actually"
_IS = rf"(?:\s+(?:is|was|would\s+be|should\s+be|must\s+be|will\s+be))?(?:,?\s+(?:{_SURELY}),?)?"


def _cue(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.VERBOSE)


# From the surest way to name a letter to the least sure; of one way the last counts.
_CUES = (
    _cue(rf"\banswer(?:\s+(?:choice|option|letter))?{_IS}\s*[:=–—-]*\s*{_NOT_BUT}{_THING}{_LETTER}"),
    _cue(rf"\b(?:correct|right|best)\s+(?:option|choice|letter|one){_IS}\s*[:=–—-]*\s*{_NOT_BUT}{_LETTER}"),
    _cue(
        rf"(?<!not\s)(?:{_LETTER}|(?-i:(?<![\w'’-])[(\[]?(?P<first>[AI])[)\]]?))\s+is\s+(?:the\s+)?(?:correct|right|best)\b"
    ),
    _cue(rf"\b(?:choose|pick|select|go\s+(?:with|for))\s+{_THING}{_LETTER}"),
    _cue(rf"\b(?:it\s+is|it's|it\s+must\s+be|it\s+has\s+to\s+be)\s+{_NOT_BUT}{_THING}{_LETTER}"),
    _cue(rf"\b(?:so|thus|hence|therefore),?\s+{_LETTER}[ \t.!]*$"),
)
_IN_BRACKETS = re.compile(r"[(\[]\s*([A-Z])\s*[)\]]")
# What is said of a letter, where what follows one is not its option.
_VERB = r"(?:is|was|are|isn['’]t|can|cannot|can['’]t|could|does|would|should|seems|looks|and|or)\b"
_FIRST = re.compile(rf"\s*[(\[]?(?:([A-Za-z])\s*[)\].:](?=\s|$)|([B-HJ-Z])\s+(?=\S)(?!{_VERB}))")
_OPTION = _cue(rf"\b(?:option|choice)\s*:?\s*{_LETTER}")


class ChoiceAnswer:
    """Compares letters where the reference is one, else normalized texts."""

    name = "choice"
    version = "3"

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False)
        text = shown(answer)
        letter = chosen_letter(text)
        for right in right_texts(row):
            wanted = _ALONE.fullmatch(_STYLE.sub("", right))
            if letter == wanted[1].upper() if wanted else normalized(text) == normalized(right):
                return Grade(True)
        return Grade(False, note=None if letter else "the answer names no letter")


def chosen_letter(text: str) -> str | None:
    """The letter that an answer comes to, large; None where it names none.

    What the text marks as its answer comes first: the last box or the last `<answer>`. Then what it calls its answer,
    then what it chooses; a letter in brackets, before an option or beside the word `option` counts where nothing else
    names one.
    """
    marked = [*deque(boxed(text), maxlen=1), *_ANSWER_TAG.findall(text)[-1:]]
    return next((letter for part in (*marked, text) for letter in _letters(_plain(part))), None)


def _plain(text: str) -> str:
    """A text without style, with one space or one line break for several: what looks for letters is slow over many."""
    return _SPACES.sub(lambda found: "\n" if "\n" in found[0] else " ", _STYLE.sub("", text)).strip()


def _letters(text: str) -> Iterator[str]:
    """The letter that each way of naming one finds in a text without style, the surest way first."""
    if (alone := _ALONE.fullmatch(text)) is not None:
        yield alone[1].upper()
    for cue in _CUES:
        for found in deque(cue.finditer(text), maxlen=1):
            if found["other"] is not None:
                # Two letters are no choice.
                return
            yield (found["word"] or found["letter"] or found.groupdict()["first"]).upper()
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and (alone := _ALONE.fullmatch(lines[-1])) is not None:
        yield alone[1].upper()
    yield from _IN_BRACKETS.findall(text)[-1:]
    if (first := _FIRST.match(text)) is not None:
        yield (first[1] or first[2]).upper()
    for found in deque(_OPTION.finditer(text), maxlen=1):
        yield (found["word"] or found["letter"]).upper()

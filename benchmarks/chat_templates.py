"""Chat templates as their models publish them: how each model thinks, and whether contexts have transformers' tokens.

    python -m benchmarks.chat_templates FOLDER… [--output DIR]

Each `.jinja` file is put into the tokenizer of `zoo/counting`, with the marks of thoughts that it has as special
tokens. Conversations are encoded here and by `apply_chat_template`, a thought in the field that was found for it.
Nothing is measured by time; results of earlier folders are replaced.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.common.folders import RESULTS
from qpdsl import zoo
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Context, Turn, encode
from qpdsl.executor.text.thinking import KNOWN_MARKS, Thinking, find_thinking

EQUAL, REFUSED, OTHER, UNTAKEN = "equal", "refused", "other tokens", "not taken by the template"
_QUESTION, _NEXT = Turn("user", "What is 3 times 4?"), Turn("user", "Check it.")
_ANSWER = Turn("assistant", "It is 12.")
_THOUGHT = "3 * 4 is 12,\n  as 3 + 3 + 3 + 3 is."
_CALLS = [{"id": "abcd12345", "type": "function", "function": {"name": "times", "arguments": {"of": 'a "3"', "by": 4}}}]


@dataclass(frozen=True, slots=True)
class Case:
    """Turns, and the same as messages; with a switch of thinking, or to go on within the last turn."""

    name: str
    turns: tuple[Turn, ...]
    messages: tuple[Mapping[str, Any], ...]
    switch: str = ""
    within_last: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the model of a template thinks, and what came of each case, by its name."""

    thinking: Thinking | None
    cases: dict[str, str] = field(default_factory=dict)


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """The tokenizer of `zoo/counting` with a chat template, and the marks of thoughts that this has."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    marks = [mark for pair in KNOWN_MARKS for mark in pair if mark in template]
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.chat_template = template
    return tokenizer


def tried(template: str) -> Outcome:
    """Tries all cases with a chat template."""
    tokenizer = tokenizer_with(template)
    thinking = find_thinking(tokenizer)
    outcome = Outcome(thinking)
    for case in cases(thinking):
        found = _tried(tokenizer, thinking, case)
        # The switches are one case: what is worst of them counts.
        worst = max(found, outcome.cases.get(case.name, found), key=(UNTAKEN, EQUAL, REFUSED, OTHER).index)
        outcome.cases[case.name] = worst
    return outcome


def cases(thinking: Thinking | None) -> Iterator[Case]:
    """The conversations that are tried."""
    system = Turn("system", "Be brief.")
    for name, turns in {
        "one turn": (_QUESTION,),
        "system": (system, _QUESTION),
        "second turn": (_QUESTION, _ANSWER, _NEXT),
        "/no_think": (Turn("user", "What is 3 times 4? /no_think"),),
    }.items():
        yield Case(name, turns, tuple(map(_message, turns)))
    begun = Turn("assistant", "It is")
    yield Case("prefill", (_QUESTION, begun), (_message(_QUESTION), _message(begun)), within_last=True)
    calls = Turn("assistant", "", calls=json.dumps({"tool_calls": _CALLS}))
    result = Turn("tool", "12 <b>", calls=json.dumps({"tool_call_id": "abcd12345", "name": "times"}))
    called = {"role": "assistant", "content": "", "tool_calls": _CALLS}
    returned = {"role": "tool", "content": "12 <b>", "tool_call_id": "abcd12345", "name": "times"}
    yield Case("tool turn", (_QUESTION, calls, result), (_message(_QUESTION), called, returned))
    if thinking is None:
        return
    thought = _ANSWER._replace(thought=_THOUGHT)
    tagged = Turn("assistant", thinking.open + _THOUGHT + thinking.close + _ANSWER.text)
    said = _message(tagged) if thinking.field is None else {**_message(_ANSWER), thinking.field: _THOUGHT}
    messages = (_message(_QUESTION), said, _message(_NEXT))
    yield Case("after a thought", (_QUESTION, thought, _NEXT), messages)
    yield Case("after tags", (_QUESTION, tagged, _NEXT), messages)
    for switch in thinking.switches:
        name = "thought off" if switch == "off" else "thought on, efforts"
        yield Case(name, (_QUESTION,), (_message(_QUESTION),), switch)
        yield Case(name, (_QUESTION, thought, _NEXT), messages, switch)


def _message(turn: Turn) -> dict[str, Any]:
    return {"role": turn.role, "content": turn.text}


def _tried(tokenizer: PreTrainedTokenizerFast, thinking: Thinking | None, case: Case) -> str:
    arguments = {} if thinking is None else thinking.arguments(case.switch)
    try:
        wanted = tokenizer.apply_chat_template(
            [*case.messages],
            tokenize=True,
            return_dict=False,
            add_generation_prompt=not case.within_last,
            continue_final_message=case.within_last,
            **arguments,
        )
    except Exception:  # a template may raise anything of jinja's
        return UNTAKEN
    try:
        ours = encode(tokenizer, Context(case.turns), thinking, case.switch, within_last=case.within_last)
    except ContextError:
        return REFUSED
    return EQUAL if ours == tuple(wanted) else OTHER


def table(results: Mapping[str, Any]) -> str:
    """The tables of results: how often each case came out how, and how each model thinks."""
    found: dict[str, dict[str, Any]] = results["templates"]
    names = list(dict.fromkeys(name for row in found.values() for name in row["cases"]))
    lines = ["| conversation | equal | refused | other tokens | not taken by the template |", "|---|--:|--:|--:|--:|"]
    for name in names:
        counts = Counter(row["cases"][name] for row in found.values() if name in row["cases"])
        lines.append(f"| {name} | " + " | ".join(str(counts[what]) for what in (EQUAL, REFUSED, OTHER, UNTAKEN)) + " |")
    heads = ("template", "opens and closes", "`think=`", "past thoughts", "field", "refused")
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in found.items():
        refused = ", ".join(case for case, what in row["cases"].items() if what == REFUSED)
        thinking = row["thinking"]
        told = ["–"] * 4 if thinking is None else _told(thinking)
        lines.append(f"| {name} | {' | '.join(told)} | {refused or '–'} |")
    return "\n".join(lines)


def _told(thinking: Mapping[str, Any]) -> list[str]:
    marks = [json.dumps(thinking[name], ensure_ascii=False)[1:-1].replace("|", "\\|") for name in ("open", "close")]
    switches = [f"**{name}**" if name == thinking["default"] else name for name in thinking["switches"]]
    past = {"kept": "kept", "dropped": "dropped", "since_user": "kept since the last user turn"}[thinking["history"]]
    return [" … ".join(f"`{mark}`" for mark in marks), ", ".join(switches), past, thinking["field"] or "–"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    templates = {}
    for file in sorted(file for folder in options.folders for file in folder.glob("*.jinja")):
        outcome = tried(file.read_text("utf-8"))
        described = None if outcome.thinking is None else outcome.thinking.data
        templates[file.stem] = {"thinking": described, "cases": outcome.cases}
    results = {"transformers": transformers.__version__, "templates": templates}
    text = json.dumps(results, ensure_ascii=False, indent=1)
    (options.output / "chat_templates.json").write_text(f"{text}\n", "utf-8")
    print(table(results))


if __name__ == "__main__":
    main()

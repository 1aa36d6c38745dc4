"""The idioms: short, in the one layout, with a line on where each is from, and with a result of the expected shape."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from qpdsl.cli.exits import Exit
from tests.support.cli import Run

PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
SOLUTION = "There are 3 boxes with 4 cards in each.\n\n3 * 4 = 12.\n\nThe answer is 12."
NOTE = "Rosa Haddad is 64 years old. Her tags are dancing and tea."
MESSAGES = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "The answer is 4."}]
Number = Annotated[str, Field(pattern=r"^-?\d+$")]
Solution = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Pair(_Strict):
    chosen: str
    rejected: str
    gap: float = Field(ge=0)


class Refined(_Strict):
    solution: str
    score: float


class Contact(_Strict):
    kind: Literal["email", "phone"]
    value: str


class Nested(_Strict):
    name: str
    age: int
    contact: Contact


class Grown(_Strict):
    name: str
    age: int


SOLVED = {"problem": PROBLEM}
# What each is given, and what comes back.
IDIOMS: dict[str, tuple[dict[str, Any], Any]] = {
    "greedy": (SOLVED, Number),
    "self_consistency": ({**SOLVED, "n": 4}, Number),
    "best_of_n": ({**SOLVED, "n": 4}, Solution),
    "contrastive_decoding": ({**SOLVED, "n": 4}, Number),
    "cot_decoding": ({**SOLVED, "k": 4}, Number),
    "weighted_best_of_n": ({**SOLVED, "n": 4}, Number),
    "universal_self_consistency": (SOLVED, Solution),
    "minimum_bayes_risk": ({**SOLVED, "n": 4}, Solution),
    "adaptive_consistency": ({**SOLVED, "n": 8}, Number),
    "deepconf": ({**SOLVED, "n": 6}, Number),
    "deepconf_online": ({**SOLVED, "n": 8}, Number),
    "early_stopping_self_consistency": (SOLVED, Number),
    "self_certainty": ({**SOLVED, "n": 4}, Solution),
    "entropy_branching": (SOLVED, Solution),
    "per_sample_temperature": (SOLVED, Number),
    "pass_at_k": ({**SOLVED, "reference": "12"}, bool),
    "budget_stop": ({**SOLVED, "budget": 100}, Number),
    "beam_search": (SOLVED, Solution),
    "dvts": (SOLVED, Number),
    "rebase": (SOLVED, Number),
    "lookahead": (SOLVED, Solution),
    "search_and_learn": (SOLVED, Solution),
    "mixed_model_beam": (SOLVED, Solution),
    "tree_of_thoughts_value": (SOLVED, Solution),
    "tree_of_thoughts_vote": (SOLVED, Solution),
    "puct": (SOLVED, Solution),
    "ab_mcts": (SOLVED, Solution),
    "multi_llm_ab_mcts": (SOLVED, Solution),
    "particle_filter": ({**SOLVED, "n": 4}, Solution),
    "entropic_particle_filter": ({**SOLVED, "n": 4}, Solution),
    "sequential_monte_carlo": ({**SOLVED, "n": 4}, Number),
    "tournament": (SOLVED, Solution),
    "score_given_texts": (
        {**SOLVED, "solutions": [SOLUTION, "The answer is 7."]},
        Literal[SOLUTION, "The answer is 7."],
    ),
    "routing": (SOLVED, Solution),
    "cascade_by_logprob": (SOLVED, Solution),
    "cascade_by_agreement": (SOLVED, Number),
    "preference_pairs": ({**SOLVED, "n": 4}, Pair),
    "resample_until_good": (SOLVED, Solution),
    "code_repair": ({"task": "Add two numbers.", "tests": "assert add(1, 2) == 3", "tries": 1}, str),
    "code_with_tests": ({"task": "Add two numbers.", "tests": "assert add(1, 2) == 3"}, str),
    "self_refine": (SOLVED, Refined),
    "self_refine_rows": (SOLVED, Solution),
    "chain_of_verification": ({**SOLVED, "draft": SOLUTION}, Solution),
    "least_to_most": (SOLVED, str),
    "debate": (SOLVED, Number),
    "mixture_of_agents": (SOLVED, str),
    "recursive_self_aggregation": (SOLVED, Solution),
    "budget_forcing": (SOLVED, Number),
    "thinking_budget": (SOLVED, Number),
    "hot_thoughts": (SOLVED, Number),
    "dynasor": (SOLVED, Number),
    "deer": (SOLVED, Number),
    "parallel_thinking": (SOLVED, Number),
    "thoughts_over_turns": (SOLVED, Number),
    "short_m_at_k": (SOLVED, Number),
    "prefix_continuation": (SOLVED, Annotated[str, Field(pattern="^First, ")]),
    "history": ({"past": MESSAGES, "question": PROBLEM}, Solution),
    "nested_record": ({"note": NOTE}, Nested),
    "json_retried": ({"note": NOTE}, Grown),
    "choice_in_text": (SOLVED, Annotated[str, Field(pattern="^(easy|hard): ")]),
    "multiple_choice": ({"question": PROBLEM, "options": ["11", "12", "13"]}, Literal["11", "12", "13"]),
    "map_over_list": ({"note": NOTE}, Annotated[list[str], Field(min_length=1, max_length=4)]),
    "skeleton_of_thought": ({"topic": "cards"}, Annotated[str, Field(pattern=r"^1\. [\s\S]*\n\n2\. ")]),
    "map_reduce": ({"parts": [NOTE, "Ben is 40."], "question": "Who is older?"}, str),
    "few_shot": ({**SOLVED, "shots": MESSAGES}, Solution),
    "few_shot_table": (
        {**SOLVED, "shots": [{"question": "Bo has 2.", "answer": "It is 2."}] * 2},
        Solution,
    ),
    "calculator_loop": (SOLVED, Solution),
    "filter": (SOLVED, Solution),
    "amortized": (SOLVED, Solution),
}
SCORERS = '''
import difflib
import qpdsl as qp


@qp.scorer(rows="all")
def likeness(text: list[str]) -> list[float]:
    """How much each text is like the others."""
    return [sum(difflib.SequenceMatcher(None, one, other).ratio() for other in text) for one in text]
'''
MORE = {
    "minimum_bayes_risk": ("--python", "scorers.py"),
    **dict.fromkeys(("code_repair", "code_with_tests"), ("--allow-code",)),
}


def _paths() -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(str(files("qpdsl.programs") / "idioms")).glob("*/*.qp"))}


def test_every_idiom_has_a_line_here() -> None:
    assert set(_paths()) == set(IDIOMS)


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "start" / "idioms.md").read_text("utf-8")
    for name, path in _paths().items():
        link = f"[`{name}`](../../programs/idioms/{path.parent.name}/{path.name})"
        assert f"| {link} | {path.read_text('utf-8').splitlines()[0][2:]} |\n" in page


@pytest.mark.parametrize("name", IDIOMS)
def test_is_short_and_checks(qpdsl: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scorers.py").write_text(SCORERS)
    path = _paths()[name]
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ") and not lines[1].startswith("#") and len(lines) <= 20
    python = MORE.get(name, ()) if "--python" in MORE.get(name, ()) else ()
    ran = qpdsl("check", path, *python)
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert ran.out.endswith(": ok\n")
    assert qpdsl("fmt", "--check", path).code == Exit.OK


@pytest.mark.parametrize("name", IDIOMS)
def test_gives_what_it_should_in_every_plan(
    qpdsl: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scorers.py").write_text(SCORERS)
    arguments, shape = IDIOMS[name]
    given = [
        part
        for key, value in arguments.items()
        for part in ("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    ]
    asked = ("run", _paths()[name], *given, *MORE.get(name, ()), "--json", "--rows", "--no-greedy", "--no-statistics")
    ran, naive = qpdsl(*asked), qpdsl(*asked, "--plan", "naive")
    assert (ran.code, naive.code) == (Exit.OK, Exit.OK), ran.err + naive.err
    shown, plain = json.loads(ran.out), json.loads(naive.out)
    TypeAdapter(shape).validate_python(shown["answer"], strict=True)
    assert (shown["answer"], shown["rows"]) == (plain["answer"], plain["rows"])

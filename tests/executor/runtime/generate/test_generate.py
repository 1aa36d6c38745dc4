"""The ways to decode: choices, filters, constraints that are cut off, and text as it comes."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.text.context import Context, encode
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.rules.decode import REPLACEMENTS
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER, compiled, run_all, texts

FOLDER = zoo.path("zoo/counting")
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)


@cache
def reference() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def log_softmax(model: torch.nn.Module, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)


def prompt(text: str) -> tuple[int, ...]:
    return encode(TOKENIZER, Context(turns=(("user", text),)))


def program(stages: str, header: str = HEADER) -> str:
    return header + f"program p(problem: text) -> text {{\n chat user=problem\n {stages}\n}}"


def run(stages: str, problem: str, header: str = HEADER, **more: int) -> InstanceResult:
    return run_all(compiled(program(stages, header)), [{"problem": problem}], **more)[0]


OPTIONS = ("2", "21", "216", "4 * 54 = 216.", "226 times as many ages as sunny weather in the ocean")


def option_logprobs(problem: str) -> list[float]:
    """The log-probability of each option and of the end after it, renormalised over the options."""
    raw = []
    for option in OPTIONS:
        tokens = (*TOKENIZER.encode(option, add_special_tokens=False), 4)
        start = prompt(problem)
        rows = log_softmax(reference(), start + tokens)
        raw.append(sum(rows[len(start) - 1 + at, token].item() for at, token in enumerate(tokens)))
    return torch.tensor(raw, dtype=torch.float64).log_softmax(0).tolist()


def test_a_choice_is_drawn_by_the_models_probability_whatever_its_length() -> None:
    listed = ", ".join(f'"{option}"' for option in OPTIONS)
    (problem,) = texts(1)
    expected = option_logprobs(problem)
    result = run(f"generate llm n=4000 as choice({listed}) temperature=6.0\n return text", problem)
    drawn = Counter(str(row.columns["text"]) for row in result.rows)
    hot = (torch.tensor(expected) / 6.0).softmax(0).tolist()
    for option, logprob, share in zip(OPTIONS, expected, hot, strict=True):
        # Four standard deviations.
        assert abs(drawn[option] - 4000 * share) <= 4 * (4000 * share) ** 0.5 + 1
        row = next((row for row in result.rows if row.columns["text"] == option), None)
        if row is not None:
            assert row.columns["logprob"] == pytest.approx(logprob, abs=1e-3)
            assert (row.columns["finish"], row.columns["finished"]) == ("match", False)
    assert len(drawn) >= 4
    cold = run(f"generate llm as choice({listed}) temperature=0", problem)
    assert cold.value == OPTIONS[expected.index(max(expected))]
    # Each option is scored once, whatever the number of samples.
    assert result.prompt_tokens == cold.prompt_tokens


@pytest.mark.parametrize("temperature", [0, 2.5])
def test_options_in_one_tree_are_drawn_as_one_by_one(temperature: float) -> None:
    listed = ", ".join(f'"{option}"' for option in OPTIONS)
    body = f"generate llm n=40 as choice({listed}) temperature={temperature}\n return text"
    text = program(body)
    naive = planned(lower(parse_file(Source("test.qp", text)), "p", Environment()), naive=True)
    rows = [{"problem": problem} for problem in texts(3)]
    expected, *others = (
        run_all(plan, rows) for plan in (naive, REPLACEMENTS["option_tree"].apply(naive), compiled(text))
    )
    for results in others:
        for result, one_by_one in zip(results, expected, strict=True):
            # The bits of log-probabilities, not the texts alone.
            columns = [(row.columns["text"], row.columns["logprob"]) for row in result.rows]
            assert columns == [(row.columns["text"], row.columns["logprob"]) for row in one_by_one.rows]
            assert result.prompt_tokens < one_by_one.prompt_tokens


def test_a_choice_goes_on_from_what_was_generated() -> None:
    (problem,) = texts(1)
    result = run('generate llm stop="\\n\\n" temperature=0\n generate llm as choice("yes", "no") into word', problem)
    (row,) = result.rows
    assert row.columns["word"] in ("yes", "no")
    assert str(row.columns["text"]).endswith("\n\n" + str(row.columns["word"]))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in generator with noise in its weights, so that it is often wrong and seldom sure."""
    folder = tmp_path_factory.mktemp("small")
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter += torch.randn_like(parameter) * parameter.std() * 0.5
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FOLDER / file, folder / file)
    return folder


def filter_header(small: Path) -> str:
    return HEADER + f'model slm = "{small}"\n'


@pytest.mark.parametrize("threshold", [0.7, 0.9, 0.99])
def test_filter_decoding_is_the_straight_one(threshold: float, small: Path) -> None:
    weak = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    took: Counter[bool] = Counter()
    for problem in texts(3):
        start = prompt(problem)
        tokens: tuple[int, ...] = ()
        while len(tokens) < 40 and tokens[-1:] != (4,):
            confidence, token = log_softmax(weak, start + tokens)[-1].exp().max(-1)
            stands = bool(confidence >= threshold)
            took[stands] += 1
            tokens += (int(token) if stands else int(log_softmax(reference(), start + tokens)[-1].argmax()),)
        rows = log_softmax(reference(), start + tokens)
        logprob = sum(rows[len(start) - 1 + at, token].item() for at, token in enumerate(tokens))
        stage = f"generate llm via filter(slm, {threshold}) temperature=0 max_tokens=40"
        (row,) = run(stage, problem, filter_header(small)).rows
        assert row.generated.tokens == (tokens[:-1] if tokens[-1] == 4 else tokens)
        assert row.columns["logprob"] == pytest.approx(logprob, abs=1e-3)
        assert row.columns["finish"] == ("eos" if tokens[-1] == 4 else "length")
    assert took[True] > 5 and took[False] > 5


def test_a_filter_that_nothing_passes_draws_what_the_large_model_draws(small: Path) -> None:
    (problem,) = texts(1)
    options = 'n=3 temperature=4 top_p=0.98 stop="\\n" max_tokens=30\n return text'
    plain = run(f"generate llm {options}", problem)
    filtered = run(f"generate llm via filter(slm, 1.0) {options}", problem, filter_header(small))
    assert [row.generated.tokens for row in filtered.rows] == [row.generated.tokens for row in plain.rows]
    assert [row.columns["finish"] for row in filtered.rows] == [row.columns["finish"] for row in plain.rows]
    assert len({row.generated.tokens for row in plain.rows}) == 3


@pytest.mark.parametrize("clause", ["via filter(slm, 0.5)", "via contrast(slm)"])
def test_two_models_with_other_vocabularies_are_refused(clause: str, small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(small, other)
    config = other / "tokenizer.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"<|system|>"', '"<|teacher|>"'), encoding="utf-8")
    text = program(f"generate llm {clause}", filter_header(other))
    with pytest.raises(ModelError, match=r"`via \w+` needs the vocabulary of `zoo/counting`"):
        Session().load(compiled(text))


SCHEMA = "schema Answer { answer: int(0..999), why: text(max_length=9) }\n"


def test_output_that_is_cut_off_is_never_reported_as_valid() -> None:
    header = SCHEMA + HEADER
    (problem,) = texts(1)
    stages = "generate llm as Answer temperature=0 max_tokens=4 into found\n extract a = .answer\n extract d = /./"
    (row,) = run(stages + "\n return text", problem, header).rows
    assert (row.columns["finish"], row.columns["finished"]) == ("length", False)
    assert row.columns["a"] is None and row.columns["d"] is None and row.columns["found"] is None
    text = program("generate llm as Answer temperature=0 max_tokens=4", header).replace("-> text", "-> Answer")
    (result,) = run_all(compiled(text), [{"problem": problem}])
    assert result.value is None
    assert result.error is not None and result.error.startswith("the output was cut off before the record")
    # Digits that could have been more are no number yet, though they would parse.
    digits = run("generate llm as /\\d{5}\\d*/ temperature=0 max_tokens=5\n extract d = /\\d+/\n return text", problem)
    assert digits.rows[0].columns["finish"] == "length" and digits.rows[0].columns["d"] is None


def test_a_record_comes_back_as_one() -> None:
    text = program("generate llm as Answer temperature=0.7", SCHEMA + HEADER).replace("-> text", "-> Answer")
    for result in run_all(compiled(text), [{"problem": problem} for problem in texts(3)]):
        assert isinstance(result.value, dict) and set(result.value) == {"answer", "why"}
        assert isinstance(result.value["answer"], int) and len(result.value["why"]) <= 9


@pytest.mark.parametrize(
    "stages",
    [
        'generate llm n=3 temperature=1.0 stop="7" max_tokens=40\n generate llm as choice(" yes", " no")',
        "generate llm n=3 temperature=1.0 as /[0-9]+ [a-z]+[.]/",
    ],
)
def test_text_comes_in_pieces_that_make_up_each_rows_text(stages: str) -> None:
    stages += "\n return text"
    plan = compiled(program(stages))
    session = Session()
    session.load(plan)
    pieces: dict[tuple[int, ...], str] = {}

    def keep(path: tuple[int, ...], stage: int, piece: str, thought: bool) -> None:
        pieces[path] = pieces.get(path, "") + piece

    async def main() -> InstanceResult:
        async with session.running():
            return await session.run(plan, {"problem": texts(1)[0]}, on_token=keep)

    result = asyncio.run(main())
    assert len(result.rows) == 3
    for row in result.rows:
        whole = "".join(pieces[row.path[:depth]] for depth in range(1, len(row.path) + 1))
        assert whole == row.columns["text"]
    assert result.rows == run_all(plan, [{"problem": texts(1)[0]}])[0].rows

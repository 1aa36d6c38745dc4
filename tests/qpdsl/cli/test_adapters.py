"""`--adapter`: another model than the one without it, everywhere that a model's id counts; and what is said of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import qpdsl as qp
from qpdsl import zoo
from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.run_options import LoadNotes
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.session.surroundings import read_surroundings
from tests.support.cli import Run
from tests.support.executor.adapters import matrices, write_adapter

PIPELINE = 'prompt "{q}" | generate slm temperature=0 max_tokens=8'
RUN = ("run", "-e", PIPELINE, "--set", "q=3 * 4", "--no-greedy")

QUOTED = ("run", "-e", 'prompt "{q}" | generate "zoo/counting"', "--set", "q=3 * 4", "--no-greedy")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes what the smallest built-in model writes."""
    model = AutoModelForCausalLM.from_pretrained(zoo.path("zoo/counting-mini"), dtype=torch.float32)
    names = [name for name, _ in model.named_modules() if name.endswith(("q_proj", "down_proj"))]
    folder = tmp_path_factory.mktemp("adapters") / "one"
    return write_adapter(folder, matrices(model, names), target_modules=["q_proj", "down_proj"])


def test_three_ways_to_name_an_adapter_are_one_model(qpdsl: Run, adapter: Path) -> None:
    id = f"zoo/counting-mini adapter={adapter}"
    ways = [("--adapter", f"slm={adapter}"), ("--model", f"slm={id}")]
    answers = {answer(qpdsl, *way) for way in ways}
    text = 'program p(q: text) -> text {\n prompt "{q}"\n generate MODEL temperature=0 max_tokens=8\n}'
    parsed = qp.parse(text.replace("MODEL", f'"{id}"'))
    declared = qp.parse(f'model m = "zoo/counting-mini" adapter="{adapter}"\n' + text.replace("MODEL", "m"))
    assert {parsed(q="3 * 4"), declared(q="3 * 4")} == answers
    assert len(answers) == 1 and answer(qpdsl) not in answers


def test_the_plan_names_the_adapter(qpdsl: Run, adapter: Path) -> None:
    assert "slm: zoo/counting-mini adapter=" in qpdsl("explain", "-e", PIPELINE, "--adapter", f"slm={adapter}").out
    explained = qpdsl("explain", "-e", PIPELINE, "--adapter", f"slm={adapter}", "--format", "json")
    assert json.loads(explained.out)["models"] == {"slm": f"zoo/counting-mini adapter={adapter}"}


def test_the_files_of_an_adapter_are_part_of_what_a_run_depends_on(adapter: Path, tmp_path: Path) -> None:
    base, other = zoo.path("zoo/counting-mini"), tmp_path / "other"
    shutil.copytree(adapter, other)
    whole = location_digest(base, adapter)
    assert whole == location_digest(base, other) != location_digest(base)
    settings = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**settings, "lora_alpha": 5}))
    assert location_digest(base, other) != whole


def test_nothing_is_written_into_an_adapter(qpdsl: Run, adapter: Path) -> None:
    ran = qpdsl(*RUN, "--adapter", f"slm={adapter}", "--trace", adapter / "trace.jsonl")
    assert ran.code == Exit.USAGE and "lies in the folder of the adapter of the model `slm`" in ran.err
    assert not (adapter / "trace.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adapter", "nobody=./a"), "`--adapter`: the pipeline uses no model `nobody`"),
        ((*QUOTED, "--adapter", "zoo/counting=./a"), "`--adapter`: the pipeline uses no model `zoo/counting`"),
        ((*QUOTED, "--model", "zoo/counting=zoo/counting-mini"), "`--model`: the pipeline uses no model"),
        (("--adapter", "./a"), "`--adapter` takes NAME=FOLDER or NAME=ID, not `./a`"),
        (("--adapter", "slm=./a", "--adapter", "slm=./b"), "two adapters are named for `slm`"),
        (("--model", "slm=x adapter=./a", "--adapter", "slm=./b"), "two adapters are named for `slm`"),
        (("--model", "slm=x adapter=./a adapter=./b"), "`--model` says an option twice"),
        (("--model", "slm=x adapter= kind=qwen"), "`--model` names no adapter"),
    ],
)
def test_what_is_wrong_with_the_options_is_said(qpdsl: Run, options: tuple[str, ...], message: str) -> None:
    ran = qpdsl(*(() if options[0] == "run" else RUN), *options)
    assert ran.code == Exit.USAGE and message in ran.err


def test_a_model_of_the_options_is_without_the_adapter_of_the_program() -> None:
    program = 'model llm = "one" adapter="./a"\nprogram p(q: text) -> text {\n prompt "{q}"\n generate llm\n}'
    assert models_of(program) == {"llm": "one adapter=./a"}
    assert models_of(program, models=["llm=two"]) == {"llm": "two"}
    assert models_of(program, adapters=["llm=./b"]) == {"llm": "one adapter=./b"}
    assert models_of(program, models=["llm=two kind=rlhflow adapter=./c"]) == {"llm": "two adapter=./c"}
    assert models_of(program, models=["llm=two"], adapters=["llm=./b"]) == {"llm": "two adapter=./b"}
    assert read_surroundings(models=["m=a adapter=b kind=qwen"]).kinds == {"m": "qwen"}
    with pytest.raises(UsageError, match="no kind of verifier `qwin`"):
        read_surroundings(models=["m=a kind=qwin adapter=b"])


def test_what_took_long_to_load_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("qpdsl.cli.runs.run_options.say", said.append)
    paged = SimpleNamespace(dtype=torch.float32, parameters=134_515_008)
    name, notes = "acme/big adapter=./tuned/one think=none", ("made for another",)
    model = PagedTextModel(name, None, frozenset(), 1, 1, notes=notes, paged=paged)  # type: ignore[arg-type]
    models = {"llm": model.name, "judge": model.name}
    for quiet, verbose, seconds in [(False, False, 2.14), (False, False, 0.3), (True, False, 9.0), (False, True, 0.3)]:
        LoadNotes(models, EventStream(), quiet=quiet, verbose=verbose).loaded(model, seconds)
    line, note = "llm, judge: big with one (float32, 134.5M parameters) loaded in {}", "note: made for another"
    assert said == [line.format("2.14 s"), note, note, note, line.format("0.30 s"), note]


def answer(qpdsl: Run, *options: object) -> str:
    ran = qpdsl(*RUN, "--json", *options)
    assert (ran.code, ran.err) == (Exit.OK, "")
    return str(json.loads(ran.out)["answer"])


def models_of(program: str, **options: list[str]) -> dict[str, str]:
    return dict(lower(parse_file(Source("p.qp", program)), None, read_surroundings(**options).environment(None)).models)

"""The shipped folders load through the ordinary classes and do what their cards say."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from family.measure.program_runs import pipeline, run_all
from family.measure.thinking_accuracy import program_text
from family.tasks.counting import evaluation_problems, extract_answer, judge, parse_step, split_steps
from family.training.thinker import solve_thinking
from family.training.transformers_sampling import solve, step_scores, verifier_text
from qpdsl import zoo

PROBLEMS = evaluation_problems(24)


def test_importing_the_zoo_loads_no_torch() -> None:
    modules = "qpdsl.zoo, family.tasks.wrong_solutions, family.tasks.records"
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="zoo/counting-prm"):
        zoo.path("zoo/nothing")


@pytest.mark.parametrize("model", zoo.BUILTIN, ids=lambda model: model.name)
def test_models_load_with_the_stated_size(model: zoo.BuiltinModel) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(zoo.path(model.name))
    assert loaded.num_parameters() == model.parameters
    assert loaded.dtype == torch.float16
    assert loaded.config.max_position_embeddings == 1024
    assert loaded.generation_config.eos_token_id == AutoTokenizer.from_pretrained(zoo.path(model.name)).eos_token_id


def test_the_family_takes_at_most_19_mb() -> None:
    sizes = [file.stat().st_size for model in zoo.BUILTIN for file in zoo.path(model.name).iterdir()]
    assert sum(sizes) <= 19_000_000


def right_solutions(name: str) -> int:
    """How many of the problems a model solves, greedily, in steps that are nearly all of the task's form."""
    folder = zoo.path(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = solve(model, AutoTokenizer.from_pretrained(folder), [problem.text for problem in PROBLEMS])
    steps = [step for text in texts for step in split_steps(text)]
    assert sum(parse_step(step) is not None for step in steps) >= 0.9 * len(steps)
    return sum(judge(problem, text).right for problem, text in zip(PROBLEMS, texts, strict=True))


def test_the_generator_is_right_now_and_then_and_the_mini_model_seldom() -> None:
    generator, mini = right_solutions("zoo/counting"), right_solutions("zoo/counting-mini")
    assert 0 < mini <= generator - 0.2 * len(PROBLEMS) < len(PROBLEMS)


def test_the_thinker_is_right_more_often_the_longer_it_thinks_and_answers_as_transformers_does() -> None:
    folder = zoo.path("zoo/counting-thinker")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    right = []
    for budget, forced in ((0, False), (32, False), (32, True), (None, False)):
        waits = [(" Wait,", budget)] if forced else []
        texts = solve_thinking(model, tokenizer, [problem.text for problem in PROBLEMS], budget, waits)
        program = pipeline(program_text(budget, forced), {"llm": "zoo/counting-thinker"})
        rows = [{"problem": problem.text} for problem in PROBLEMS]
        outcomes = run_all("thinker", program, rows, [problem.answer for problem in PROBLEMS])
        assert [outcome.answer for outcome in outcomes] == [extract_answer(text) for text in texts]
        right.append(sum(outcome.correct is True for outcome in outcomes))
    off, short, waited, free = right
    assert off + 0.15 * len(PROBLEMS) <= free
    assert off <= short <= waited <= free


def test_the_verifier_scores_every_step_between_zero_and_one() -> None:
    folder = zoo.path("zoo/counting-prm")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = step_scores(model, tokenizer, [(problem.text, problem.solution) for problem in PROBLEMS])
    assert [len(row) for row in scores] == [len(problem.steps) for problem in PROBLEMS]
    assert all(0.0 <= score <= 1.0 for row in scores for score in row)


def test_the_verifier_text_is_the_chat_template_of_the_conversation() -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting-prm"))
    conversation = [
        {"role": "user", "content": "A question? 1 + 2 = 3."},
        {"role": "assistant", "content": "+"},
        {"role": "user", "content": "3 + 4 = 7. The answer is 7."},
        {"role": "assistant", "content": "+"},
    ]
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False)
    assert rendered == verifier_text("A question?", ["1 + 2 = 3.", "3 + 4 = 7. The answer is 7."])

"""Training: the data it sees, going on after an interruption, the verifier's head start."""

from __future__ import annotations

import json
import random
import re
from itertools import islice
from pathlib import Path

import pytest
import torch

from family.tasks.counting import evaluation_problems, problems
from family.tasks.held_out import held_out
from family.tasks.records import evaluation_notes
from family.tasks.thoughts import thought_lines
from family.tasks.wrong_solutions import judged_steps
from family.training.batches import (
    IGNORED,
    CompletionBatch,
    completion_rows,
    fresh_batches,
    fresh_pairs,
    pad_rows,
)
from family.training.comparator import with_comparator
from family.training.eagle_training import eagle_losses, new_head, same_tokens, save_eagle
from family.training.export import save_folder
from family.training.generator import MINI, SOLVER
from family.training.llama import Shape, hidden_after, new_model
from family.training.loop import Optimizers, Recipe, TrainingSettings, rate, train
from family.training.thinker import ThoughtRows
from family.training.tokenizer import build_thinking_tokenizer, build_tokenizer
from family.training.transformers_sampling import sampled_problems
from family.training.verifier_rows import RowMaker, VerifierRow
from family.training_stages import FamilyFolder, Steps, eagle_stage, samples_stage, solver_stage
from qpdsl.executor.models.eagle_checkpoint import load_head

pytestmark = pytest.mark.unshipped
TOKENIZER = build_tokenizer()
TINY = Shape(layers=2, width=64, inner=64)


def losses(model: torch.nn.Module, batch: CompletionBatch) -> torch.Tensor:
    logits = model(input_ids=batch.ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
    return loss[None]


def trained(steps: int, checkpoint: Path, until: int | None = None) -> dict[str, torch.Tensor]:
    """The weights after a short training, interrupted after `until` steps when that is given."""
    model = new_model(TINY, seed=3)

    def evaluate(step: int) -> dict[str, float]:
        if step == until:
            raise KeyboardInterrupt
        return {}

    recipe = Recipe(
        name="tiny",
        model=model,
        batches=lambda first: fresh_batches(TOKENIZER, 1, first),
        losses=losses,
        loss_names=("loss",),
        evaluate=evaluate,
        evaluate_every=1,
    )
    train(recipe, steps, checkpoint, TrainingSettings())
    return model.state_dict()


def test_a_training_that_was_interrupted_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = trained(5, tmp_path / "whole.pt")
    monkeypatch.setattr("family.training.loop._CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        trained(5, tmp_path / "cut.pt", until=3)
    resumed = trained(5, tmp_path / "cut.pt")
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)


def test_a_solver_that_never_gets_as_good_as_asked_is_told_of(tmp_path: Path) -> None:
    family = FamilyFolder(tmp_path, TrainingSettings(), Steps(solver=1), until=0.5)
    with pytest.raises(SystemExit, match="not right on 50% yet"):
        solver_stage(family)
    assert not (tmp_path / "work" / "solver").exists()
    with pytest.raises(SystemExit, match="run the stages before this one"):
        samples_stage(family)


def test_batches_from_a_step_on_are_those_of_an_endless_stream() -> None:
    stream = list(islice(fresh_batches(TOKENIZER, 2, 0), 19))
    later = next(fresh_batches(TOKENIZER, 2, 18))
    assert torch.equal(stream[18].ids, later.ids)
    assert torch.equal(stream[18].targets, later.targets)


def test_no_training_text_is_held_out_or_in_an_evaluation_set() -> None:
    held_out_texts = {problem.text for problem in evaluation_problems()} | {note.prompt for note in evaluation_notes()}
    for pool in range(3):
        prompts = [prompt for prompt, _ in fresh_pairs(1, pool)]
        assert held_out_texts.isdisjoint(prompts)
        texts = [prompt.partition(" as JSON: ")[2] or prompt for prompt in prompts]
        assert not any(held_out(text) for text in texts)
    assert held_out_texts.isdisjoint(problem.text for problem in sampled_problems(2000, seed=1))


def test_the_learning_rate_warms_up_stays_and_falls_to_zero() -> None:
    factors = [rate(step, 1000) for step in range(1001)]
    assert factors[0] == pytest.approx(0.01)
    assert set(factors[100:500]) == {1.0}
    assert factors[750] == pytest.approx(0.5)
    assert factors[1000] == 0.0


def test_hidden_states_are_those_of_the_whole_model() -> None:
    model = new_model(TINY, seed=4).eval()
    ids = torch.randint(0, 700, (2, 9), generator=torch.Generator().manual_seed(0))
    middle, last = hidden_after(model, ids, 1, 2)
    output = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    torch.testing.assert_close(last, output.last_hidden_state)
    torch.testing.assert_close(middle, model.model.norm(output.hidden_states[1]))


def test_the_verifier_starts_from_the_generator_and_sees_what_was_expected() -> None:
    generator = new_model(TINY, seed=5).eval()
    maker = RowMaker(TOKENIZER)
    rows = [maker.row(problem.text, judged_steps(problem, problem.solution)) for problem in islice(problems(6), 24)]
    width = min(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids[:width] for row in rows])
    compared = torch.tensor([row.first_errors[:width] for row in rows]) != IGNORED
    grown = with_comparator(generator, Shape(4, TINY.width, TINY.inner), ids, compared, seed=1)
    generator_weights = generator.state_dict()
    for name, weight in grown.state_dict().items():
        if name in generator_weights:
            assert torch.equal(weight, generator_weights[name])
    assert not grown.model.layers[3].mlp.down_proj.weight.any()
    with pytest.raises(ValueError, match="needs more than 2"):
        with_comparator(generator, TINY, ids, compared, seed=1)


def labels_of(row: VerifierRow, maker: RowMaker) -> list[bool]:
    return [label == maker.plus for label in row.labels if label != IGNORED]


def test_a_verifier_row_labels_every_step_and_marks_the_first_wrong_token() -> None:
    maker = RowMaker(TOKENIZER)
    problem = next(p for p in problems(7) if p.level == 2)
    equation = problem.facts[1].equation
    wrong = f"{equation.left} {equation.operator} {equation.right} = {equation.result + 1}."
    row = maker.row(problem.text, judged_steps(problem, f"{problem.steps[0]}\n\n{wrong}\n\n{problem.steps[2]}"))
    assert labels_of(row, maker) == [True, False, False]
    (slip,) = [place for place, mark in enumerate(row.first_errors) if mark == 1]
    wanted, written = row.words[slip - 1], row.ids[slip]
    assert wanted != written
    assert TOKENIZER.decode([wanted]) in str(equation.result)
    assert row.after_error[slip - 1] in (0, IGNORED)
    assert set(row.after_error[slip:]) <= {1, IGNORED}


def test_a_thought_is_learned_but_for_the_words_of_others_and_forced_closes() -> None:
    tokenizer = build_thinking_tokenizer(TOKENIZER)
    maker, rng, kinds = ThoughtRows(tokenizer), random.Random(8), set()
    for problem in islice(problems(8), 60):
        row = maker.row(problem, problem, rng)
        tokens = [*zip(row.ids[1:], row.targets, strict=False), (row.targets[-1], row.targets[-1])]
        assert all(target in (IGNORED, token) for token, target in tokens)
        read = tokenizer.decode([token for token, target in tokens if target == IGNORED])
        thought, _, answer = tokenizer.decode([token for token, _ in tokens]).rpartition("\n</think>\n\n")
        thought = thought.rpartition("<think>\n")[2]
        assert answer == f"{problem.solution}<|end|>"
        forced = "</think>" in read
        assert forced or re.search(rf" = {problem.answer}\.$", thought)
        learned = tokenizer.decode([target for target in row.targets if target != IGNORED]).rpartition("</think>")[2]
        stated = [fact for fact in problem.facts if f"{fact.equation}." in thought]
        assert all(str(fact.equation) in learned for fact in stated)
        assert "Wait" not in learned
        kinds |= {"cut" if thought and forced else "closed" if thought else "none", "wait" if "Wait" in thought else ""}
    assert kinds == {"closed", "cut", "none", "wait", ""}


def test_a_thought_that_is_only_read_is_whole_and_its_answer_is_learned() -> None:
    tokenizer = build_thinking_tokenizer(TOKENIZER)
    maker, rng = ThoughtRows(tokenizer), random.Random(10)
    for problem in islice(problems(10), 30):
        row = maker.row(problem, problem, rng, read=True)
        learned = tokenizer.decode([target for target in row.targets if target != IGNORED])
        assert learned == f"{problem.solution}<|end|>"
        thought = tokenizer.decode(row.ids).rpartition("<think>\n")[2].rpartition("\n</think>")[0]
        assert thought.endswith(f" = {problem.answer}.")


def test_a_thought_that_is_told_to_wait_begins_the_line_again_that_it_was_in_or_the_last_equation() -> None:
    tokenizer = build_thinking_tokenizer(TOKENIZER)
    maker, rng, places = ThoughtRows(tokenizer), random.Random(9), set()
    for problem in islice(problems(9), 100):
        row = maker.row(problem, problem, rng)
        thought = tokenizer.decode([*row.ids, row.targets[-1]]).rpartition("<think>\n")[2].partition("\n</think>")[0]
        before, told, after = thought.partition("Wait")
        steps = thought_lines(problem)
        lines = [line for step in steps for line in step]
        standing = sum(before.startswith("".join(lines[:end]).rstrip(".\n")) for end in range(1, len(lines) + 1))
        again, again_after = [*lines, steps[-1][0]][standing], after.removeprefix(",").lstrip()
        if told:
            assert again.startswith(again_after) or again_after.startswith(again)
            places.add(standing == len(lines))
    assert places == {False, True}


def test_the_mini_model_is_far_smaller() -> None:
    assert new_model(MINI, seed=1).num_parameters() < new_model(SOLVER, seed=1).num_parameters() / 16


def test_a_drafting_head_learns_what_the_generator_writes_next_and_is_read_by_the_engine(tmp_path: Path) -> None:
    generator = new_model(TINY, seed=6).eval()
    with torch.no_grad():
        generator.model.embed_tokens.weight.mul_(20)
    batch = pad_rows(completion_rows(TOKENIZER, fresh_pairs(1, 0)[-4:]), 0)
    head = new_head(generator.config, inner=32, seed=1)
    optimizers = Optimizers(head)
    before = eagle_losses(head, generator, batch).detach()
    for _ in range(40):
        eagle_losses(head, generator, batch).sum().backward()
        optimizers.step(3.0)
    after = eagle_losses(head, generator, batch).detach()
    assert (after < 0.8 * before).all()
    save_eagle(tmp_path / "head", head)
    read = load_head("head", tmp_path / "head", "cpu")
    assert read.embed_tokens is None
    assert same_tokens(read, generator, batch) > 0.5


def test_a_drafting_head_is_trained_on_samples_of_the_generator(tmp_path: Path) -> None:
    family = FamilyFolder(tmp_path, TrainingSettings(), Steps(eagle=1), until=0.5)
    family.tokenizer = TOKENIZER
    with pytest.raises(SystemExit, match="run the stages before this one"):
        eagle_stage(family)
    save_folder(tmp_path / "counting", new_model(TINY, seed=6), TOKENIZER)
    family.samples_file.write_text(json.dumps({"number": 0, "prompt": "1?", "text": "1", "temperature": 1.0}) + "\n")
    eagle_stage(family)
    assert load_head("head", tmp_path / "counting-eagle", "cpu").fc.weight.shape == (TINY.width, 2 * TINY.width)
    assert "counting-eagle" in family.descriptions

"""The stages in which the family is trained, and the files that one leaves for the next.

Each stage is a function of the `FamilyFolder`; it does nothing where its output is there already.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.measure.cards import write_cards, write_thinker_card
from family.measure.family_figures import measure
from family.measure.thinking_accuracy import measure_thinking
from family.training.eagle_training import save_eagle, train_eagle
from family.training.export import save_folder
from family.training.generator import train_mini, train_solver
from family.training.loop import TrainingSettings
from family.training.process_reward_model import train_verifier
from family.training.progress_bar import note
from family.training.thinker import train_thinker
from family.training.tokenizer import build_thinking_tokenizer, build_tokenizer
from family.training.transformers_sampling import TaskSample, sample_tasks


@dataclass(frozen=True)
class Steps:
    """How long each model is trained, in steps of 64 rows (the thinker's have 16), and how many problems are sampled
    from `counting`."""

    solver: int = 4000
    mini: int = 1600
    thinker: int = 1700
    eagle: int = 1000
    prm: int = 6000
    samples: int = 48_000


class FamilyFolder:
    """The folder of a family, finished or not. Files that only the training needs are in `work`."""

    def __init__(self, out: Path, settings: TrainingSettings, steps: Steps, until: float) -> None:
        self.out, self.settings, self.steps, self.until = out, settings, steps, until
        self.work = out / "work"
        self.work.mkdir(parents=True, exist_ok=True)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return build_tokenizer()

    def load(self, folder: Path) -> LlamaForCausalLM:
        """A float32 model of the family, on the training device.

        Raises SystemExit when the stage that makes it has not run.
        """
        if not folder.exists():
            raise SystemExit(f"{folder} is not there yet: run the stages before this one, or all of them")
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model.to(self.settings.device).eval()

    def checkpoint(self, name: str) -> Path:
        return self.work / f"{name}.checkpoint.pt"

    def save(
        self, folder: Path, model: LlamaForCausalLM, trained: str, tokenizer: PreTrainedTokenizerFast | None = None
    ) -> None:
        save_folder(folder, model, tokenizer or self.tokenizer)
        self.describe(folder, trained)

    def describe(self, folder: Path, trained: str) -> None:
        """Note how the model in a folder was trained."""
        descriptions = {**self.descriptions, folder.name: trained}
        (self.work / "trained.json").write_text(json.dumps(descriptions, indent=1) + "\n")
        note(f"{folder}: {trained}")

    @property
    def descriptions(self) -> dict[str, str]:
        """How each model was trained, in a sentence, for its card."""
        file = self.work / "trained.json"
        descriptions: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return descriptions

    @property
    def samples_file(self) -> Path:
        return self.work / "samples.jsonl"

    def samples(self) -> list[TaskSample]:
        """The samples of `counting` for training tasks.

        Raises SystemExit when the stage that samples has not run.
        """
        if not self.samples_file.exists():
            raise SystemExit(f"{self.samples_file} is not there yet: run the stages before this one, or all of them")
        return [TaskSample(**json.loads(line)) for line in self.samples_file.read_text().splitlines()]


def solver_stage(family: FamilyFolder) -> None:
    """Train the solver, and save `counting` on the way, when it is right about half the time.

    Raises SystemExit when the solver was never as good as that.
    """
    if (family.work / "solver").exists():
        return

    def half_trained(model: LlamaForCausalLM, step: int) -> None:
        if not (family.out / "counting").exists():
            trained = f"Stopped after {step:,} of the solver's {steps:,} steps, 64 fresh texts each, seed {seed}."
            family.save(family.out / "counting", model, trained)

    steps, seed = family.steps.solver, family.settings.seed
    model = train_solver(
        family.tokenizer, steps, family.checkpoint("solver"), family.settings, family.until, half_trained
    )
    if not (family.out / "counting").exists():
        raise SystemExit(f"after {steps:,} steps the solver is not right on {family.until:.0%} yet: give it more steps")
    family.save(family.work / "solver", model, f"Trained for {steps:,} steps of 64 fresh texts, seed {seed}.")


def samples_stage(family: FamilyFolder) -> None:
    """Sample solutions of training problems, and a few records, from `counting` at several temperatures."""
    if family.samples_file.exists():
        return
    model = family.load(family.out / "counting")
    samples = sample_tasks(model, family.tokenizer, family.steps.samples, seed=family.settings.seed)
    partial = family.samples_file.with_suffix(".partial")
    partial.write_text("".join(json.dumps(vars(sample)) + "\n" for sample in samples))
    partial.replace(family.samples_file)


def mini_stage(family: FamilyFolder) -> None:
    """Train `counting-mini`, which needs nothing of the other stages."""
    out = family.out / "counting-mini"
    if out.exists():
        return
    steps = family.steps.mini
    model = train_mini(family.tokenizer, steps, family.checkpoint("mini"), family.settings)
    family.save(out, model, f"Trained for {steps:,} steps of 64 fresh texts.")


def thinker_stage(family: FamilyFolder) -> None:
    """Grow the lower layers of `counting` into `counting-thinker`."""
    out = family.out / "counting-thinker"
    if out.exists():
        return
    steps, tokenizer = family.steps.thinker, build_thinking_tokenizer(family.tokenizer)
    generator = family.load(family.out / "counting")
    model = train_thinker(tokenizer, generator, steps, family.checkpoint("thinker"), family.settings)
    trained = f"Trained for {steps:,} steps of 16 fresh texts from the lower three layers of `counting`."
    family.save(out, model, trained, tokenizer)


def eagle_stage(family: FamilyFolder) -> None:
    """Train `counting-eagle`, which drafts for `counting` from its hidden states."""
    out = family.out / "counting-eagle"
    if out.exists():
        return
    steps = family.steps.eagle
    pairs = [(sample.prompt, sample.text) for sample in family.samples()]
    generator = family.load(family.out / "counting")
    head = train_eagle(family.tokenizer, generator, pairs, steps, family.checkpoint("eagle"), family.settings)
    save_eagle(out, head)
    family.describe(out, f"Trained for {steps:,} steps of 64 texts that `counting` sampled.")


def prm_stage(family: FamilyFolder) -> None:
    """Grow the solver into `counting-prm`."""
    out = family.out / "counting-prm"
    if out.exists():
        return
    steps = family.steps.prm
    solver, generator = family.load(family.work / "solver"), family.load(family.out / "counting")
    checkpoint = family.checkpoint("prm")
    model = train_verifier(family.tokenizer, solver, generator, family.samples(), steps, checkpoint, family.settings)
    family.save(
        out,
        model,
        f"Trained for {steps:,} steps of 64 rows with three layers added on top of the solver, the well-trained "
        f"sibling of `counting` (see its card). The data: {family.steps.samples:,} solutions of training problems "
        "sampled from `counting` at four temperatures, fresh corruptions and right solutions in every batch, all "
        "labelled by the exact checker.",
    )


def cards_stage(family: FamilyFolder) -> None:
    """Measure the family on the held-out tasks and write its cards."""
    solver = family.work / "solver"
    generator, mini, verifier = (family.out / name for name in ("counting", "counting-mini", "counting-prm"))
    figures = measure(generator, mini, verifier, solver if solver.exists() else None)
    (family.work / "figures.json").write_text(figures.to_json())
    write_cards(family.out, figures, family.descriptions)
    thinker = family.out / "counting-thinker"
    write_thinker_card(thinker, measure_thinking(thinker), family.descriptions[thinker.name])


STAGES: dict[str, Callable[[FamilyFolder], None]] = {
    "solver": solver_stage,
    "mini": mini_stage,
    "thinker": thinker_stage,
    "samples": samples_stage,
    "eagle": eagle_stage,
    "prm": prm_stage,
    "cards": cards_stage,
}

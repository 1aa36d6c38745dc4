"""Measure the built-in family: accuracy against tokens, the verifier, the mini model, the middle layer, records.

    pip install -e '.[bench]'
    python -m benchmarks.family.measure [--models DIR] [--solver DIR] [--problems 500] [--notes 300] [--mini]
                                        [--draw-only]

Writes `benchmarks/results/family.json`, `docs/reference/built_in_models.md` and its picture. `--models` measures a
family in another folder (as `python -m family.train` leaves it); `--solver` adds the mark that the verifier is held
against, which needs the solver that does not ship (the training leaves it in its `work` folder). `--mini` measures the
mini model alone and keeps the other figures; the thinker's are those of `thinking_budget`. `--cards` also writes the
cards in the model folders, from what the training remembered.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.common.folders import PICTURES, RESULTS, ROOT
from benchmarks.common.machine import describe, sentence
from benchmarks.family.page import page
from benchmarks.family.picture import draw
from family.measure.cards import write_cards
from family.measure.family_figures import Figures, measure, with_mini
from family.measure.thinking_accuracy import ThinkingFigures
from qpdsl import zoo

FIGURES = RESULTS / "family.json"
PAGE = ROOT / "docs" / "reference" / "built_in_models.md"
PICTURE = PICTURES / "family.svg"
THINKING = RESULTS / "thinking_budget.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=zoo.path("zoo/counting").parent, metavar="DIR")
    parser.add_argument("--solver", type=Path, metavar="DIR")
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--notes", type=int, default=300)
    parser.add_argument("--mini", action="store_true", help="measure the mini model alone, keep the other figures")
    parser.add_argument("--draw-only", action="store_true", help="draw again from the results that are there")
    parser.add_argument("--cards", type=Path, metavar="TRAINED_JSON", help="also write the cards")
    arguments = parser.parse_args()
    generator, mini, verifier = (arguments.models / name for name in ("counting", "counting-mini", "counting-prm"))
    torch.set_num_threads(1)
    if arguments.draw_only or arguments.mini:
        data = json.loads(FIGURES.read_text())
        figures, machine = Figures.from_json(json.dumps(data["figures"])), data["machine"]
        if not arguments.draw_only:
            figures = with_mini(figures, generator, mini)
    else:
        figures = measure(generator, mini, verifier, arguments.solver, arguments.problems, arguments.notes)
        machine = {**describe(), "sentence": sentence()}
    written = {"machine": machine, "figures": json.loads(figures.to_json())}
    FIGURES.write_text(json.dumps(written, indent=1) + "\n")
    PICTURE.parent.mkdir(exist_ok=True)
    draw(figures, PICTURE)
    thinking = ThinkingFigures.from_json(json.loads(THINKING.read_text())["figures"])
    PAGE.write_text(page(figures, thinking, machine["sentence"]), encoding="utf-8", newline="\n")
    if arguments.cards is not None:
        write_cards(arguments.models, figures, json.loads(arguments.cards.read_text()))


if __name__ == "__main__":
    main()

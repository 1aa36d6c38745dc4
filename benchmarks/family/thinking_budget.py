"""Right answers of the thinker over the budget of its thought, and what "Wait" adds to a short one.

    python -m benchmarks.family.thinking_budget [--model FOLDER] [--problems 500] [--draw-only]
                                                [--card TRAINED_JSON] [--output FOLDER]

Runs `generate llm think=N` over the held-out problems, greedily, at budgets from none to no bound, and with budget
forcing (s1, Muennighoff et al. 2025): the thought ends at its bound, is told to "Wait", and has as many tokens again.
Writes `thinking_budget.json`, `.md` and `.svg`; `benchmarks.family.measure --draw-only` takes the page's figures from
there. `--card` also writes the model's card, from what the training remembered.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import PercentFormatter

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from family.measure.cards import thinking_table, write_thinker_card
from family.measure.thinking_accuracy import FORCED, ThinkingFigures, measure_thinking, program_text
from qpdsl import zoo

NAME = "thinking_budget"


def page(figures: ThinkingFigures, machine: str) -> str:
    """All of it, as markdown."""
    return f"""# Budgets of thoughts (zoo/counting-thinker)

{figures.problems} held-out counting problems, greedily. A thought that comes to its bound is closed there, and the
answer follows.

{thinking_table(figures)}

![right answers over the budget of the thought]({NAME}.svg)

The programs, with 32 tokens:

```
{program_text(32, False)}
{program_text(32, True)}
```

Written by `python -m benchmarks.family.thinking_budget`. Measured on: {machine}.
"""


def draw(figures: ThinkingFigures, path: Path) -> None:
    """Writes right answers over the tokens of thoughts as SVG, the same bytes for the same figures."""
    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    plain = [entry for entry in figures.thoughts if not entry.forced]
    tokens, right = [entry.tokens for entry in plain], [entry.right for entry in plain]
    axes.plot(tokens, right, color="#0072B2", marker="o", label="one thought, by its budget")
    for entry in plain:
        name = "no bound" if entry.budget is None else str(entry.budget)
        axes.annotate(name, (entry.tokens, entry.right), xytext=(4, -11), textcoords="offset points")
    for budget in FORCED:
        ends = [figures.thought(budget), figures.thought(budget, forced=True)]
        label = 'closed, "Wait", as much again' if budget == FORCED[0] else None
        points = [entry.tokens for entry in ends], [entry.right for entry in ends]
        axes.plot(*points, color="#D55E00", marker="s", linestyle="--", label=label)
    axes.set(title="Right answers", xlabel="tokens of thought a problem", ylabel="right")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="lower right")
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=zoo.path("zoo/counting-thinker"), metavar="FOLDER")
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--draw-only", action="store_true", help="draw again from the results that are there")
    parser.add_argument("--card", type=Path, metavar="TRAINED_JSON", help="also write the card")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file, folder = arguments.output / f"{NAME}.json", arguments.model
    if arguments.draw_only:
        data = json.loads(file.read_text())
        figures, machine = ThinkingFigures.from_json(data["figures"]), data["machine"]
    else:
        figures, machine = measure_thinking(folder, arguments.problems), {**describe(), "sentence": sentence()}
    file.write_text(json.dumps({"machine": machine, "figures": figures.to_json()}, indent=1) + "\n")
    draw(figures, arguments.output / f"{NAME}.svg")
    (arguments.output / f"{NAME}.md").write_text(page(figures, machine["sentence"]), encoding="utf-8", newline="\n")
    if arguments.card is not None:
        write_thinker_card(folder, figures, json.loads(arguments.card.read_text())[folder.name])


if __name__ == "__main__":
    main()

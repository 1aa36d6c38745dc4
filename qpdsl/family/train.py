"""Train the built-in family from nothing and write it as Hugging Face folders with cards of measured numbers.

    python -m qpdsl.family.train --out DIR

The stages follow one another, each from what the ones before it left under DIR: `solver` (which leaves
`DIR/counting` on its way), `samples`, `mini`, `prm`, `cards`. Run again after an interruption, training goes on from
the last checkpoint; a finished stage is not repeated. `--only` runs one stage, so that `mini` and `prm` can share a
machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from qpdsl.family.stages import STAGES, Family, Steps
from qpdsl.family.training.loop import Settings


def main(arguments: Sequence[str] | None = None) -> None:
    default = Steps()
    parser = argparse.ArgumentParser(prog="python -m qpdsl.family.train", description="train the built-in models")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument("--only", choices=list(STAGES), help="run one stage (default: all, in order)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--compile", action="store_true", help="compile the training step (needs a C++ compiler)")
    parser.add_argument("--solver-steps", type=int, default=default.solver, metavar="N", help="default %(default)s")
    parser.add_argument("--mini-steps", type=int, default=default.mini, metavar="N", help="default %(default)s")
    parser.add_argument("--prm-steps", type=int, default=default.prm, metavar="N", help="default %(default)s")
    parser.add_argument("--samples", type=int, default=default.samples, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--until",
        type=float,
        default=0.5,
        help="stop `counting` at this greedy share on held-out problems (default 0.5)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    settings = Settings(seed=chosen.seed, device=chosen.device, compiled=chosen.compile)
    steps = Steps(solver=chosen.solver_steps, mini=chosen.mini_steps, prm=chosen.prm_steps, samples=chosen.samples)
    family = Family(chosen.out, settings, steps, chosen.until)
    for stage in [chosen.only] if chosen.only else STAGES:
        STAGES[stage](family)


if __name__ == "__main__":
    main()

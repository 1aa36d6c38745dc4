"""Train the built-in family from nothing and write it as Hugging Face folders with cards of measured numbers.

    python -m family.train --out DIR

The stages run in order, each from what the earlier ones left under DIR: `solver` (which also leaves `DIR/counting`),
`mini`, `thinker`, `samples`, `eagle`, `prm`, `cards`. After an interruption, training continues from the last
checkpoint; a finished stage is not repeated. `--only` runs one stage, so that two can share a machine. `mini` needs no
other one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from family.training.loop import TrainingSettings
from family.training_stages import STAGES, FamilyFolder, Steps


def main(arguments: Sequence[str] | None = None) -> None:
    default = Steps()
    parser = argparse.ArgumentParser(prog="python -m family.train", description="train the built-in models")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    parser.add_argument("--only", choices=list(STAGES), help="run one stage (default: all, in order)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--compile", action="store_true", help="compile the training step (needs a C++ compiler)")
    parser.add_argument("--solver-steps", type=int, default=default.solver, metavar="N", help="default %(default)s")
    parser.add_argument("--mini-steps", type=int, default=default.mini, metavar="N", help="default %(default)s")
    parser.add_argument("--thinker-steps", type=int, default=default.thinker, metavar="N", help="default %(default)s")
    parser.add_argument("--eagle-steps", type=int, default=default.eagle, metavar="N", help="default %(default)s")
    parser.add_argument("--prm-steps", type=int, default=default.prm, metavar="N", help="default %(default)s")
    parser.add_argument("--samples", type=int, default=default.samples, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--until",
        type=float,
        default=0.5,
        help="stop `counting` at this greedy share on held-out problems (default 0.5)",
    )
    options = parser.parse_args(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    settings = TrainingSettings(seed=options.seed, device=options.device, compiled=options.compile)
    steps = Steps(
        solver=options.solver_steps,
        mini=options.mini_steps,
        thinker=options.thinker_steps,
        eagle=options.eagle_steps,
        prm=options.prm_steps,
        samples=options.samples,
    )
    family = FamilyFolder(options.out, settings, steps, options.until)
    for stage in [options.only] if options.only else STAGES:
        STAGES[stage](family)


if __name__ == "__main__":
    main()

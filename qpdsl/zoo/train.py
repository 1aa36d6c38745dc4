"""Train a built-in model and write it as a Hugging Face folder with a card of measured numbers.

    python -m qpdsl.zoo.train counting --until 0.5 --minutes 60 --out DIR
    python -m qpdsl.zoo.train counting-prm --start STRONG --generator DIR --minutes 60 --out DIR

An interrupted training resumes from the checkpoint beside DIR when the same command runs again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from qpdsl.zoo.train_generator import train_generator
from qpdsl.zoo.train_verifier import train_verifier
from qpdsl.zoo.training import Limit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m qpdsl.zoo.train", description="train a built-in model")
    parser.add_argument("model", choices=["counting", "counting-prm"])
    parser.add_argument("--minutes", type=float, help="stop after this many minutes of training")
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="compile the training step (needs a C++ compiler)")
    parser.add_argument("--until", type=float, help="counting: stop at this greedy share on held-out problems")
    parser.add_argument("--start", type=Path, help="counting-prm: the well trained generator to start from")
    parser.add_argument("--generator", type=Path, help="counting-prm: the generator whose mistakes to learn")
    arguments = parser.parse_args()
    if arguments.minutes is None and arguments.steps is None:
        parser.error("give --minutes or --steps")
    torch.set_num_threads(arguments.threads)
    limit = Limit(arguments.minutes, arguments.steps)
    if arguments.model == "counting":
        train_generator(arguments.out, limit, arguments.seed, arguments.until, arguments.compile)
        return
    if arguments.start is None or arguments.generator is None:
        parser.error("counting-prm needs --start and --generator")
    train_verifier(arguments.out, arguments.start, arguments.generator, limit, arguments.seed, arguments.compile)


if __name__ == "__main__":
    main()

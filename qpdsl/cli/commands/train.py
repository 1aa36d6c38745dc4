"""`qpdsl train`: an adapter from the right answers of a saved run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from qpdsl.cli.console import say
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import FileName
from qpdsl.errors import UsageError


@click.command()
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--output", metavar="FOLDER", required=True, type=FileName(), help="Where the adapter goes, for `--adapter`."
)
@click.option("--model", "name", metavar="NAME", help="The program's model to train.  [default: the one that wrote]")
@click.option(
    "--per-row", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Right answers of a row."
)
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Passes over the answers.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True, help="Of AdamW.")
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Answers in a step.")
@click.option("--rank", type=click.IntRange(min=1), default=16, show_default=True, help="The adapter's rank.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the adapter's first weights and the order.")
@click.option("--overwrite", is_flag=True, help="Replace an adapter in --output.")
def command(
    run: str,
    output: str,
    name: str | None,
    per_row: int,
    epochs: int,
    rate: float,
    batch: int,
    rank: int,
    seed: int,
    overwrite: bool,
) -> Exit:
    """Fine-tune a LoRA adapter on the right answers of a run with --save-trajectories (extra `train`).

    What a search found and a grader or a verifier let pass, the model learns to write at once: rejection sampling
    (Yuan et al., "Scaling Relationship on Learning Mathematical Reasoning with Large Language Models", 2023). It learns
    the tokens that it drew, and none that the program wrote.

    \b
    qpdsl run best_of_n --input problems.jsonl --save-trajectories
    qpdsl train last --output adapter
    qpdsl run greedy --adapter llm=adapter --input test.jsonl
    """
    from qpdsl.cli.runs.run_files import name_models
    from qpdsl.output import folder_written
    from qpdsl.runs.fine_tuning import (
        ADAPTER_FILES,
        AdapterSettings,
        begins_adapter,
        fine_tuned,
        learned_sequences,
        save_adapter,
    )
    from qpdsl.runs.store.run_file import RunFile
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.runs.training_forms import saved_rows

    folder = RunFolder()
    path = folder.find(run)
    contents = Contents("an adapter", begins_adapter)
    with RunFile.reading(path) as kept:
        models = kept.record.models
        guard = FileGuard()
        name_models(guard, models)
        target = guard.writes_folder(Path(output), "`--output`", ADAPTER_FILES, contents, overwrite=overwrite)
        rows = saved_rows(kept, per_row)
    model = _model(models, name, [draw.model for row in rows for draw in row.trajectory.draws])
    sequences = learned_sequences(rows, model)
    if not sequences:
        raise UsageError(f"nothing is to be learned: `{model}` wrote no right answer to any of the {len(rows):,} rows")
    say(f"{len(sequences):,} right answers of {len(rows):,} rows, {sum(len(own.ids) for own in sequences):,} tokens")

    def tell(epoch: int, steps: int, loss: float) -> None:
        say(f"epoch {epoch} of {epochs}: {steps:,} steps, loss {loss:.4f}")

    tuned = fine_tuned(_place(model), model, sequences, AdapterSettings(epochs, rate, batch, rank, seed), tell)
    with folder_written(target) as part:
        save_adapter(tuned, part)
    say(f"`--adapter {_name(models, model)}={output}` runs with it")
    return Exit.OK


def _model(models: Mapping[str, str], name: str | None, wrote: list[str]) -> str:
    """The id of the model to train. Raises UsageError where it is not known which."""
    if name is not None:
        if name not in models:
            raise UsageError(f"the program has no model `{name}`", f"it has {', '.join(models)}")
        return models[name]
    known = list(dict.fromkeys(wrote))
    if len(known) != 1:
        names = ", ".join(own for own, id in models.items() if id in known)
        raise UsageError(
            "several models wrote" if known else "no model wrote", f"`--model` takes {names}" if names else None
        )
    return known[0]


def _place(model: str) -> Path:
    from qpdsl.grammar.model_id import adapter_of
    from qpdsl.model_location import locate

    if adapter_of(model) is not None:
        raise UsageError(f"`{model}` has an adapter already", "merge it into the model, and run that")
    place = locate(model)
    if not isinstance(place, Path) or not place.is_dir():
        raise UsageError(f"`{model}` is no folder with a checkpoint of transformers, which training takes")
    return place


def _name(models: Mapping[str, str], model: str) -> str:
    return next(name for name, id in models.items() if id == model)

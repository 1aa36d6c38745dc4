"""`qpdsl check`: what is wrong with programs, without loading a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.project_command import ModelCommand
from qpdsl.cli.proposals import complete_programs
from qpdsl.cli.shared_options import HeadedOption, format_option, setting_options
from qpdsl.session.settings import PROGRAM, Settings
from qpdsl.session.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from qpdsl.grammar import ast
    from qpdsl.planner.names.modules import Environment


@click.command(cls=ModelCommand)
@click.argument("targets", metavar="FILE|NAME…", nargs=-1, required=False, shell_complete=complete_programs)
@setting_options(Settings, "check")
@click.option(
    "--sandbox",
    is_flag=True,
    cls=HeadedOption,
    heading=PROGRAM,
    help="Show the walls around code that a model wrote, on this machine.",
)
@format_option
def command(
    targets: tuple[str, ...],
    models: tuple[str, ...],
    allow_read: tuple[str, ...],
    python: tuple[str, ...],
    tools: tuple[str, ...],
    sandbox: bool,
    form: str,
) -> Exit:
    """Check program files, or programs shipped with qpdsl by their NAME; `-` reads a program from stdin.

    With --model the model's tokenizer is loaded too, and what the program asks of its chat template and of its thoughts
    is checked.

    Errors and warnings go to stderr, a line for each good file to stdout; with --format json all findings go to stdout
    as one list. Exits with 0 if no file has an error, else with 2. With --sandbox it is 2 where `--allow-code` would be
    refused.
    """
    from qpdsl.cli.diagnostics import say_error, show, show_error, show_more
    from qpdsl.errors import UsageError
    from qpdsl.grammar.diagnostic import QpError, to_json
    from qpdsl.grammar.model_id import is_remote, written_out
    from qpdsl.grammar.parse.parser import parse_file
    from qpdsl.planner.check.program import check
    from qpdsl.planner.values.value import dumps
    from qpdsl.session.programs import folder_of, read_target

    if sandbox:
        if targets:
            raise UsageError("`--sandbox` is about this machine: it goes without programs")
        return _show_sandbox(form)
    if not targets:
        raise UsageError("missing FILE or NAME of a program")
    surroundings = read_surroundings(allow_read, python, models, tools=tools)
    code = Exit.OK
    findings = []
    for target in targets:
        try:
            source = read_target(target)
            file, environment = parse_file(source), surroundings.environment(folder_of(target))
            diagnostics = check(file, environment)
            if any(not model.id.startswith("zoo/") and not is_remote(written_out(model.id)) for model in file.models):
                _check_scoring(file, environment)
            if models:
                _check_with_models(file, environment, surroundings)
        except QpError as error:
            code = Exit.USAGE
            if form == "json":
                findings += [to_json(diagnostic, error.source) for diagnostic in error.diagnostics]
                show_more(error)
            else:
                show_error(error)
            continue
        except UsageError as error:
            say_error(error)
            code = Exit.USAGE
            continue
        if form == "json":
            findings += [to_json(diagnostic, source) for diagnostic in diagnostics]
        else:
            show(diagnostics, source)
            put(f"{source.name}: ok")
    if form == "json":
        put(dumps(findings))
    return code


def _check_scoring(file: ast.File, environment: Environment) -> None:
    """Checks that the models of a valid file which score can, as far as their files tell. Raises ModelError."""
    from qpdsl.model_location import check_verifiers
    from qpdsl.planner.check.program import lower_all
    from qpdsl.planner.plan.logical import operators

    for program in lower_all(file, environment)[0]:
        check_verifiers(operators(program.plan), program.models)


def _check_with_models(file: ast.File, environment: Environment, surroundings: Surroundings) -> None:
    """Checks the programs of a file, which is valid, with the tokenizers of the models that `--model` gives.

    Raises QpError, UsageError and ModelError.
    """
    from qpdsl.planner.check.program import lower_all
    from qpdsl.planner.plan.naive import plan
    from qpdsl.session.programs import check_named

    lowered, _ = lower_all(file, environment)
    programs = [one for program in lowered for one in (program, *(way.program for way in program.ways))]
    declared = {model.name for model in file.models}.union(*(program.models for program in programs))
    check_named(surroundings, sorted(declared), f"`{file.source.name}` declares no model")
    # These load torch.
    from qpdsl.executor.models.load import load_text_model
    from qpdsl.model_location import tokenizer_place
    from qpdsl.plan_templates import check_templates
    from qpdsl.plan_thoughts import check_thoughts

    ids = {id for program in programs for name, id in program.models.items() if name in surroundings.models}
    models = {id: load_text_model(id, tokenizer_place(id), say) for id in sorted(ids)}
    for program in programs:
        check_templates(plan(program), models)
        check_thoughts(plan(program), models)


def _show_sandbox(form: str) -> Exit:
    """Prints which walls the sandbox has here."""
    from qpdsl.executor.runtime.sandbox.run import NoSandbox, walls
    from qpdsl.planner.values.value import dumps

    try:
        found = walls()
        held, lacking, refusal = found.held, found.lacking, found.refusal
    except NoSandbox as error:
        held, lacking, refusal = {}, {}, str(error)
    if form == "json":
        put(dumps({"held": dict(held), "lacking": dict(lacking), "refusal": refusal}))
    else:
        for name, text in [*held.items(), *((name, f"lacking: {why}") for name, why in lacking.items())]:
            put(f"{name:<10}  {text}")
        put("--allow-code runs code that a model wrote" if refusal is None else f"--allow-code is refused: {refusal}")
    return Exit.OK if refusal is None else Exit.USAGE

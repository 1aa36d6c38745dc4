"""`qpdsl settings`: what commands are given here, and where each value comes from."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import format_option

# Set in the environment, these are read; the values of keys are not shown.
_VARIABLES = ("QPDSL_RUNS", "QPDSL_STATISTICS", "QPDSL_RUNTIME_DIR", "QPDSL_THEME", "OPENAI_BASE_URL")
_WIDE = 48
_KEYS = ("QPDSL_API_KEYS", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")


@click.command()
@format_option
def command(form: str) -> Exit:
    """Show what `run`, `eval`, `explain` and `serve` are given in this folder where their command line says nothing.

    That is what stands in `qpdsl.toml` of this folder, or of one above it in the same Git checkout, then variables of
    the environment, then what is built in.
    """
    import json
    import os

    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.session.project import DEFAULTS, NAME, read_project, set_in_vain
    from qpdsl.session.setting import declared
    from qpdsl.session.settings import Settings
    from qpdsl.session.user_cache import folder

    project = read_project()
    for warning in set_in_vain(project):
        say(warning)
    found: list[tuple[str, str, str]] = []
    place = NAME if project.path is None else str(project.path)
    for section in ("models", "servers", "set", "data"):
        for name, value in getattr(project, section).items():
            found.append((f"{section}.{name}", value, place))
    for name in _VARIABLES:
        if name in os.environ:
            found.append((name, os.environ[name], "the environment"))
    found += [(name, "(a key)", "the environment") for name in _KEYS if os.environ.get(name)]
    known = {name: (one, default) for name, one, default in declared(Settings)}
    for option, name in DEFAULTS.items():
        if option in project.defaults:
            found.append((f"--{option}", json.dumps(project.defaults[option]), place))
        else:
            one, default = known[name]
            shown = one.shown or ("none" if default is None else json.dumps(default))
            found.append((f"--{option}", shown, "built in"))
    for name, path, variables in (
        ("saved runs", RunFolder().path, ("QPDSL_RUNS", "XDG_DATA_HOME")),
        ("cache", folder(), ("XDG_CACHE_HOME",)),
    ):
        moved = next((variable for variable in variables if os.environ.get(variable)), None)
        found.append((name, str(path), "built in" if moved is None else f"the environment, {moved}"))
    if form == "json":
        rows = [{"name": name, "value": value, "from": source} for name, value, source in found]
        put(json.dumps(rows, ensure_ascii=False, indent=2))
        return Exit.OK
    names = max(len(name) for name, _, _ in found)
    values = max(len(value) for _, value, _ in found if len(value) <= _WIDE)
    for name, value, source in found:
        # A long value has the line to itself.
        put(f"{name:<{names}}  {value:<{values}}" + (f"  {source}" if len(value) <= _WIDE else ""))
        if len(value) > _WIDE:
            put(f"{'':<{names}}  {'':<{values}}  {source}")
    return Exit.OK

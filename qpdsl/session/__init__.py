"""A program, its settings, and the session that runs it.

Open `settings.py` first: each setting is declared there once, with its option, its help and its default. `prepare.py`
is the one way from a program to a plan that can run, for the command line, a server and Python. `session.py` holds the
loaded models and one engine, and runs plans; `replaying_session.py` loads weights where something is asked of them.

`programs.py` finds and checks the programs that a command names, `surroundings.py` what they may use besides their own
text: folders, Python functions (`functions.py`), other models, drafts (`user_drafts.py`). `planning.py` makes the plan,
by the rules and then, where the device was measured, by cost. Statistics, profiles and what routers learned are in the
user's cache folder (`user_cache.py`); a file there is replaced whole, one that is damaged counts as absent, and
statistics are changed under a lock. `analysis.py` compares a run with its estimate, `profile.py` measures a device, and
`described_model.py` reads the numbers of a model that is not loaded. Planning works without any of these files, and
without torch: only the sessions, `analysis.py` and `profile.py` load it, and `described_model.py` to count a model.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qpdsl.session.session import Session as Session


def __getattr__(name: str) -> Any:
    if name != "Session":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    # Only now, as it loads torch.
    from qpdsl.session.session import Session

    return Session

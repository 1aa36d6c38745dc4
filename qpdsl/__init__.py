"""qpdsl: a query planner for test-time compute.

    import qpdsl as qp

gives the Python face: `@qp.program`, the stages (`qp.chat`, `qp.prompt` and the methods of the rows that they give),
`qp.load` and `qp.parse`. Everything is loaded when it is first used.
"""

import os
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Read when torch is loaded. Its threads would spin while they wait, and keep a core from the compiled kernels' threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from qpdsl.api.binding import using as using
    from qpdsl.api.candidate import Candidate as Candidate
    from qpdsl.api.compose.annotations import Messages as Messages
    from qpdsl.api.compose.decorator import program as program
    from qpdsl.api.compose.expressions import abs as abs
    from qpdsl.api.compose.expressions import all as all
    from qpdsl.api.compose.expressions import any as any
    from qpdsl.api.compose.expressions import auto as auto
    from qpdsl.api.compose.expressions import col as col
    from qpdsl.api.compose.expressions import contains as contains
    from qpdsl.api.compose.expressions import count as count
    from qpdsl.api.compose.expressions import exp as exp
    from qpdsl.api.compose.expressions import first as first
    from qpdsl.api.compose.expressions import float as float
    from qpdsl.api.compose.expressions import if_ as if_
    from qpdsl.api.compose.expressions import int as int
    from qpdsl.api.compose.expressions import join as join
    from qpdsl.api.compose.expressions import last as last
    from qpdsl.api.compose.expressions import len as len
    from qpdsl.api.compose.expressions import lines as lines
    from qpdsl.api.compose.expressions import list as list
    from qpdsl.api.compose.expressions import log as log
    from qpdsl.api.compose.expressions import lower as lower
    from qpdsl.api.compose.expressions import matches as matches
    from qpdsl.api.compose.expressions import max as max
    from qpdsl.api.compose.expressions import mean as mean
    from qpdsl.api.compose.expressions import median as median
    from qpdsl.api.compose.expressions import min as min
    from qpdsl.api.compose.expressions import none as none
    from qpdsl.api.compose.expressions import not_ as not_
    from qpdsl.api.compose.expressions import number as number
    from qpdsl.api.compose.expressions import quantile as quantile
    from qpdsl.api.compose.expressions import random as random
    from qpdsl.api.compose.expressions import rank as rank
    from qpdsl.api.compose.expressions import replace as replace
    from qpdsl.api.compose.expressions import round as round
    from qpdsl.api.compose.expressions import sort as sort
    from qpdsl.api.compose.expressions import split as split
    from qpdsl.api.compose.expressions import sqrt as sqrt
    from qpdsl.api.compose.expressions import std as std
    from qpdsl.api.compose.expressions import strip as strip
    from qpdsl.api.compose.expressions import sum as sum
    from qpdsl.api.compose.expressions import text as text
    from qpdsl.api.compose.expressions import upper as upper
    from qpdsl.api.compose.stages import Rows as Rows
    from qpdsl.api.compose.stages import chat as chat
    from qpdsl.api.compose.stages import extract as extract
    from qpdsl.api.compose.stages import let as let
    from qpdsl.api.compose.stages import prompt as prompt
    from qpdsl.api.compose.targets import Model as Model
    from qpdsl.api.compose.targets import amortized as amortized
    from qpdsl.api.compose.targets import boxed as boxed
    from qpdsl.api.compose.targets import call as call
    from qpdsl.api.compose.targets import certainty as certainty
    from qpdsl.api.compose.targets import choice as choice
    from qpdsl.api.compose.targets import compare as compare
    from qpdsl.api.compose.targets import confidence as confidence
    from qpdsl.api.compose.targets import contrast as contrast
    from qpdsl.api.compose.targets import draft as draft
    from qpdsl.api.compose.targets import eagle as eagle
    from qpdsl.api.compose.targets import early_exit as early_exit
    from qpdsl.api.compose.targets import entropy as entropy
    from qpdsl.api.compose.targets import epsilon as epsilon
    from qpdsl.api.compose.targets import equal as equal
    from qpdsl.api.compose.targets import exact as exact
    from qpdsl.api.compose.targets import failure as failure
    from qpdsl.api.compose.targets import filter as filter
    from qpdsl.api.compose.targets import final_answer as final_answer
    from qpdsl.api.compose.targets import itself as itself
    from qpdsl.api.compose.targets import judge as judge
    from qpdsl.api.compose.targets import lark as lark
    from qpdsl.api.compose.targets import last_number as last_number
    from qpdsl.api.compose.targets import likelihood as likelihood
    from qpdsl.api.compose.targets import logprob as logprob
    from qpdsl.api.compose.targets import loss as loss
    from qpdsl.api.compose.targets import model as model
    from qpdsl.api.compose.targets import ngram as ngram
    from qpdsl.api.compose.targets import passes as passes
    from qpdsl.api.compose.targets import prob as prob
    from qpdsl.api.compose.targets import recorded as recorded
    from qpdsl.api.compose.targets import regex as regex
    from qpdsl.api.compose.targets import replayable as replayable
    from qpdsl.api.compose.targets import schema as schema
    from qpdsl.api.compose.targets import valid_json as valid_json
    from qpdsl.api.data_rows import read_rows as read_rows
    from qpdsl.api.evaluating import EvaluatedCell as EvaluatedCell
    from qpdsl.api.evaluating import Evaluation as Evaluation
    from qpdsl.api.evaluating import evaluate as evaluate
    from qpdsl.api.loading import load as load
    from qpdsl.api.loading import parse as parse
    from qpdsl.api.program import Plan as Plan
    from qpdsl.api.program import Program as Program
    from qpdsl.api.program import QpWarning as QpWarning
    from qpdsl.api.results import Finished as Finished
    from qpdsl.api.results import Result as Result
    from qpdsl.api.results import RunError as RunError
    from qpdsl.api.results import TextPiece as TextPiece
    from qpdsl.api.results import Tokens as Tokens
    from qpdsl.arguments import ArgumentError as ArgumentError
    from qpdsl.errors import UsageError as UsageError
    from qpdsl.errors import UserError as UserError
    from qpdsl.executor.checkpoint.errors import ModelError as ModelError
    from qpdsl.executor.requests.errors import BudgetReached as BudgetReached
    from qpdsl.executor.requests.errors import ServerGone as ServerGone
    from qpdsl.grammar.diagnostic import QpError as QpError
    from qpdsl.session.functions import Extractor as Extractor
    from qpdsl.session.functions import Scorer as Scorer
    from qpdsl.session.functions import extractor as extractor
    from qpdsl.session.functions import load_functions as load_functions
    from qpdsl.session.functions import scorer as scorer
    from qpdsl.session.functions import tool as tool
    from qpdsl.session.session import Session as Session

__version__ = "0.2.0"

# Where each name of the Python face is, as the imports above say it to type checkers.
_TEXT = Path(__file__).read_text("utf-8")
_HOME = {name: home for home, name in re.findall(r"^    from (\S+) import (\w+) as", _TEXT, re.MULTILINE)}

# In a checkout the stages lie beside this folder, not in it. Python started in the checkout's root finds this folder
# first even where the package is installed, so the root joins the package's search path.
_root = Path(__file__).resolve().parent.parent
if (_root / "grammar" / "qp.lark").is_file():
    __path__.append(str(_root))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from qpdsl.api.other_names import no_attribute

        raise no_attribute(__name__, name, _HOME)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> Iterable[str]:
    return sorted([*globals(), *_HOME])

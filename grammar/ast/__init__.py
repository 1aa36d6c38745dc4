"""The abstract syntax tree: frozen, typed, a span on every node.

Open `declarations.py` first: a `File` is the root. `model_stages.py` and `stages.py` declare what a program does, stage
by stage, in the terms of `stage.py`; `clauses.py` has the parts that a `generate` takes besides options. Code outside
this folder imports the package and writes `ast.File`; only `stage.py` and `walk.py`, with the functions that go through
trees, are imported as modules. Spans take no part in equality: two texts that differ in layout alone parse to equal
trees. Nodes hold what was written; what a name means is found out in `planner/`, whose operators are stages that were
checked.
"""

from qpdsl.grammar.ast.clauses import *  # noqa: F403
from qpdsl.grammar.ast.declarations import *  # noqa: F403
from qpdsl.grammar.ast.expressions import *  # noqa: F403
from qpdsl.grammar.ast.model_stages import *  # noqa: F403
from qpdsl.grammar.ast.node import *  # noqa: F403
from qpdsl.grammar.ast.schemas import *  # noqa: F403
from qpdsl.grammar.ast.stage import *  # noqa: F403
from qpdsl.grammar.ast.stages import *  # noqa: F403

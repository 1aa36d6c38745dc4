"""qpdsl: a query planner for test-time compute."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout the stages lie beside this folder, not in it. Python started in the checkout's root finds this folder
# first even where the package is installed, so the root joins the package's search path.
_root = Path(__file__).resolve().parent.parent
if (_root / "grammar" / "qp.lark").is_file():
    __path__.append(str(_root))

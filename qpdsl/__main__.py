"""`python -m qpdsl`."""

import sys

from qpdsl.cli import main

sys.exit(main())

"""A process that compiles constraints of strangers, one a line, to find whether they compile in time.

`compile_check.py` starts it as a script. It answers each with an empty line, or the kernel ends it by SIGPROF, in the
middle of a call into the library too.
"""

from __future__ import annotations

import json
import signal
import sys

from llguidance import LLMatcher, LLTokenizer


def main() -> None:
    tokenizer = LLTokenizer("byte")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])
        LLMatcher(tokenizer, question["grammar"], log_level=0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""Compiles kernels before they are launched, several at a time: one after the other takes seconds each.

Triton compiles a kernel when it is first launched with its kinds of arguments, and keeps the code on disk. In `queued`
a launch that would have to wait for that is left out, and what it wants is compiled by a pool; Triton then finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

import triton
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


@contextmanager
def queued(pool: Executor) -> Iterator[list[Future[object]]]:
    """In the block, launches of what is not compiled do nothing; what they want is compiled in the `pool`.

    So what such kernels would write is as it was before. Compilers leave the interpreter to other threads.
    """
    waiting: dict[tuple[int, Any], Future[object]] = {}
    result: list[Future[object]] = []
    compile_now = JITFunction._do_compile

    def later(self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, *rest: Any) -> None:
        if (id(self), key) not in waiting:
            source = self.ASTSource(self, signature, constants, rest[0])
            target = driver.active.get_current_target()
            future = pool.submit(triton.compile, source, target=target, options=options.__dict__)
            waiting[id(self), key] = future
            result.append(future)

    JITFunction._do_compile = later
    try:
        yield result
    finally:
        JITFunction._do_compile = compile_now

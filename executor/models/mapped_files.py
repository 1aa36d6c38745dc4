"""Files that this process has mapped, whose pages need not stay in memory between two uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from qpdsl.executor.kernels.llvm.large_pages import give_back_pages

_MAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s+(/.*)\n(?:\w+: .*\n)*?Anonymous: +0 kB", re.M)


class MappedFiles:
    """The places in memory of files that are mapped and of which nothing was changed there; none where nobody says."""

    def __init__(self, files: Iterable[Path]) -> None:
        names = {str(file.resolve()) for file in {*files}}
        text = _MAPS.read_text() if names and _MAPS.is_file() else ""
        found = ((match[3], int(match[1], 16), int(match[2], 16)) for match in _MAPPING.finditer(text))
        self._places = [(begin, end) for name, begin, end in found if name in names]

    def give_back(self) -> None:
        """Gives back the memory of all pages, which are read again where they are needed."""
        for begin, end in self._places:
            give_back_pages(begin, end)

    def holds(self, values: torch.Tensor) -> bool:
        begin = values.data_ptr()
        return any(first <= begin and begin + values.nbytes <= last for first, last in self._places)

    @contextmanager
    def spared(self, model: torch.nn.Module) -> Iterator[None]:
        """In the block, weights in these files are given back whenever a module has computed with them."""
        hooks = []
        for module in model.modules() if self._places else ():
            own = [part for part in module.parameters(recurse=False) if self.holds(part)]
            if own:
                hooks.append(module.register_forward_hook(_giving_back(own)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _giving_back(weights: list[torch.nn.Parameter]) -> Callable[..., None]:
    places = [(part.data_ptr(), part.data_ptr() + part.nbytes) for part in weights]

    def give(*_: object) -> None:
        for begin, end in places:
            give_back_pages(begin, end)

    return give

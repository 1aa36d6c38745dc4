"""Several continuations of a sample joined to one tree of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qpdsl.executor.engine.memory.proposal import Proposal


class Branching:
    """A tree that grows by paths: each token has at most `branches` that follow it, and there are `nodes` in all."""

    def __init__(self, branches: int, nodes: int) -> None:
        self._branches = branches
        self._nodes = nodes
        self._children: list[dict[int, int]] = [{}]
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def add(self, parent: int, token: int) -> int | None:
        """The number of this token behind `parent` (-1 for the sample's last one); None where the tree is full."""
        children = self._children[parent + 1]
        number = children.get(token)
        if number is None and len(children) < self._branches and len(self._tokens) < self._nodes:
            number = children[token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
            self._children.append({})
        return number

    @property
    def proposal(self) -> Proposal | None:
        """None for a tree without tokens. A tree that does not branch is a chain."""
        if not self._tokens:
            return None
        proposal = Proposal(tuple(self._tokens), tuple(self._parents))
        return proposal if proposal.is_tree else Proposal(proposal.tokens)


def joined(paths: Iterable[Sequence[int]], branches: int, nodes: int) -> Proposal | None:
    """The paths in one tree, those that come first before the others."""
    tree = Branching(branches, nodes)
    for path in paths:
        parent = -1
        for token in path:
            node = tree.add(parent, token)
            if node is None:
                break
            parent = node
    return tree.proposal

"""Tokens that may follow those of a sequence, one after the other or as a tree, for one forward to check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proposal:
    """Each token follows the one that `parents` names by its number, -1 for the last token of the sequence.

    Parents come before their children, and no two children of a parent are the same token. Without `parents`, each
    token follows the one before it.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.parents is not None:
            assert len(self.parents) == len(self.tokens), "every token needs a parent"
            assert all(-1 <= parent < index for index, parent in enumerate(self.parents)), "a parent comes first"
            assert len({*zip(self.parents, self.tokens, strict=True)}) == len(self.tokens), "children differ"

    @property
    def is_tree(self) -> bool:
        """Whether some token does not follow the one before it."""
        return self.parents is not None and self.parents != tuple(range(-1, len(self.tokens) - 1))

    @property
    def depths(self) -> list[int]:
        """How many proposed tokens stand before each on its path."""
        if self.parents is None:
            return [*range(len(self.tokens))]
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The tokens up to each of them on its path, itself included."""
        paths: list[tuple[int, ...]] = []
        for index, token in enumerate(self.tokens):
            parent = index - 1 if self.parents is None else self.parents[index]
            paths.append((token,) if parent < 0 else (*paths[parent], token))
        return paths

    @property
    def ancestors(self) -> list[tuple[int, ...]]:
        """The numbers of the tokens up to each of them on its path, itself included."""
        ancestors: list[tuple[int, ...]] = []
        for index in range(len(self.tokens)):
            parent = index - 1 if self.parents is None else self.parents[index]
            ancestors.append((index,) if parent < 0 else (*ancestors[parent], index))
        return ancestors

    def child(self, parent: int, token: int) -> int | None:
        """The number of this token behind `parent` (-1 for the last of the sequence); None where it is not here."""
        if self.parents is None:
            following = parent + 1
            return following if following < len(self.tokens) and self.tokens[following] == token else None
        pairs = zip(self.parents, self.tokens, strict=True)
        return next((number for number, pair in enumerate(pairs) if pair == (parent, token)), None)

    def goes_on(self, parent: int) -> bool:
        """Whether any token is proposed behind `parent` (-1 for the last of the sequence)."""
        return parent + 1 < len(self.tokens) if self.parents is None else parent in self.parents

    def pruned(self, kept: int) -> Proposal | None:
        """The first `kept` tokens, None for none: parents come first, so they are a proposal too."""
        if kept <= 0:
            return None
        if kept >= len(self.tokens):
            return self
        return Proposal(self.tokens[:kept], None if self.parents is None else self.parents[:kept])

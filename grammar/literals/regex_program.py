"""A regex tree as a program of the kind that Pike's matcher runs.

See Cox, "Regular Expression Matching: the Virtual Machine Approach", 2009. Threads go through the instructions in order
of priority, over all characters at once; the order is that of Python's backtracking.

A loop ends, as in Python, behind a round that took nothing. So the body of a loop that can be empty is there twice: the
*idle* copy, where the round has taken nothing yet, and the *busy* one. Taking a character leads from the idle copy of
an instruction to behind the busy one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qpdsl.grammar.literals.characters import Ranges
from qpdsl.grammar.literals.regex_tree import (
    Alternation,
    Begin,
    CharacterSet,
    Concatenation,
    End,
    Group,
    Repeat,
    Tree,
    nullable,
)


@dataclass(slots=True)
class Taking:
    """Takes a character of the set, then goes on at `target`."""

    ranges: Ranges
    target: int


@dataclass(slots=True)
class Split:
    """Goes on at each of `targets`, the first ranking first."""

    targets: list[int]


@dataclass(frozen=True, slots=True)
class Assert:
    """Goes on where the text begins (`begin`), else where it ends."""

    begin: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Group 1 opens here, or closes (`closes`)."""

    closes: bool


class Matched:
    """The pattern has matched."""


Instruction = Taking | Split | Assert | Mark | Matched
# Where a part of the tree stands, repeats written out.
_Place = tuple[int, ...]


def compiled(tree: Tree) -> list[Instruction]:
    """The program of a tree; it begins at the first instruction."""
    compiler = _Compiler()
    compiler.emit(tree, (), idle=False)
    compiler.program.append(Matched())
    for place, instruction in compiler.idle:
        instruction.target = compiler.busy[place]
    return compiler.program


@dataclass(slots=True)
class _Compiler:
    """`busy` says where each part of a pattern that takes a character goes on once a round has taken one."""

    program: list[Instruction] = field(default_factory=list)
    busy: dict[_Place, int] = field(default_factory=dict)
    idle: list[tuple[_Place, Taking]] = field(default_factory=list)

    def emit(self, tree: Tree, place: _Place, *, idle: bool) -> None:
        program = self.program
        match tree:
            case CharacterSet(ranges=ranges):
                taking = Taking(ranges, len(program) + 1)
                program.append(taking)
                if idle:
                    self.idle.append((place, taking))
                else:
                    self.busy[place] = taking.target
            case Concatenation(items=items):
                for index, item in enumerate(items):
                    self.emit(item, (*place, index), idle=idle)
            case Alternation(arms=arms):
                self._either(arms, place, idle)
            case Repeat():
                self._repeat(tree, place, idle)
            case Group(item=item):
                program.append(Mark(False))
                self.emit(item, (*place, 0), idle=idle)
                program.append(Mark(True))
            case Begin() | End():
                program.append(Assert(isinstance(tree, Begin)))

    def _either(self, arms: tuple[Tree, ...], place: _Place, idle: bool) -> None:
        choice = self._split()
        ends = []
        for index, arm in enumerate(arms):
            choice.targets.append(len(self.program))
            self.emit(arm, (*place, index), idle=idle)
            ends.append(self._split())
        for end in ends:
            end.targets.append(len(self.program))

    def _repeat(self, repeat: Repeat, place: _Place, idle: bool) -> None:
        for number in range(repeat.least):
            self.emit(repeat.item, (*place, number), idle=idle)
        # Rounds that may be left out; a loop has one, which leads back to its own beginning.
        choices: list[Split] = []
        empties: list[Split] = []
        for number in range(repeat.least, repeat.least + 1 if repeat.most is None else repeat.most):
            choices.append(self._split())
            choices[-1].targets.append(len(self.program))
            empties += self._round(repeat.item, (*place, number), idle)
        if repeat.most is None:
            self.program.append(Split([choices[0].targets[0] - 1]))
        for choice in choices:
            choice.targets.insert(1 if repeat.greedy else 0, len(self.program))
        for empty in empties:
            empty.targets.append(len(self.program))

    def _round(self, item: Tree, place: _Place, idle: bool) -> list[Split]:
        """A round that may be left out; returns what goes on behind the repeat if the round took nothing."""
        if not nullable(item):
            self.emit(item, place, idle=idle)
            return []
        self.emit(item, place, idle=True)
        empty = self._split()
        if not idle:
            self.emit(item, place, idle=False)
        return [empty]

    def _split(self) -> Split:
        split = Split([])
        self.program.append(split)
        return split

"""Reads a kernel's machine code (SASS): its instructions, its innermost loops, and how many of what kind they hold.

Loops are the natural loops of the flow graph (Aho, Lam, Sethi and Ullman, "Compilers", section 9.6). An instruction is
counted once for a warp, whichever of its threads take part.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_BARRIER = re.compile(r"\bB\d+\b")
_SHARED = {"LDS", "LDSM", "STS", "STSM", "ATOMS"}
_CONVERT = {"F2F", "F2FP", "F2I", "F2IP", "I2F", "I2FP", "I2I", "I2IP", "FRND"}
_DOUBLE = {"DADD", "DFMA", "DMUL", "DMNMX", "DSETP"}
# Whole tiles that a thread asks the copy engine for.
_TILES = {"UBLKCP", "UTMALDG"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """`name` is the opcode with its suffixes, as `LDG.E.128`; `guard` the predicate, empty where it always runs."""

    address: int
    guard: str
    name: str
    operands: str

    @property
    def opcode(self) -> str:
        return self.name.partition(".")[0]

    @property
    def target(self) -> int | None:
        """The address that a jump names."""
        found = _TARGET.search(self.operands)
        return int(found[1], 16) if found else None


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions of a warp.

    instructions: all of them
    shortest:     those of the shortest way through: what branches can skip is left out
    tensor:       matrix products by tensor cores
    wide:         loads of 128 bits a thread from global memory, or of whole tiles by the copy engine
    narrow:       smaller loads from global memory
    shared:       loads from shared memory and stores to it
    special:      exponentials, logarithms, reciprocals (MUFU)
    convert:      conversions between number types
    double:       float64 arithmetic
    barriers:     waits for the other warps of the block
    commits:      groups of asynchronous copies
    local:        spilled registers stored or loaded
    """

    instructions: int
    shortest: int
    tensor: int
    wide: int
    narrow: int
    shared: int
    special: int
    convert: int
    double: int
    barriers: int
    commits: int
    local: int


def instructions_of(text: str) -> list[Instruction]:
    """The instructions of the first function in what `cuobjdump -sass` prints."""
    first = text.split("Function : ")[1] if "Function : " in text else text
    return [
        Instruction(int(found[1], 16), found[2] or "", found[3], found[4].strip())
        for found in map(_LINE.search, first.splitlines())
        if found
    ]


def count(code: Iterable[Instruction], shortest: int) -> Counts:
    """How many of each kind there are in `code`."""
    counts = dict.fromkeys(Counts.__slots__, 0)
    for instruction in code:
        counts["instructions"] += 1
        opcode, *suffixes = instruction.name.split(".")
        if opcode in ("LDG", "LDGSTS") or opcode in _TILES:
            counts["wide" if "128" in suffixes or opcode in _TILES else "narrow"] += 1
        counts["tensor"] += opcode.endswith("MMA")
        counts["shared"] += opcode in _SHARED
        counts["special"] += opcode == "MUFU"
        # Half to float is written as an addition of zero.
        counts["convert"] += opcode in _CONVERT or (opcode == "HADD2" and "F32" in suffixes)
        counts["double"] += opcode in _DOUBLE
        counts["barriers"] += opcode == "BAR"
        counts["commits"] += opcode == "LDGDEPBAR"
        counts["local"] += opcode in ("LDL", "STL")
    return Counts(**{**counts, "shortest": shortest})


@dataclass(frozen=True, slots=True)
class Program:
    """The counts of all code that can run, and of the innermost loops, in the order of their first instructions."""

    whole: Counts
    loops: list[Counts]


def read(text: str) -> Program:
    """Reads what `cuobjdump -sass` prints. Raises ValueError where that has no instructions."""
    code = instructions_of(text)
    if not code:
        raise ValueError("there is no machine code in what cuobjdump printed")
    follow = _following(code)
    reached = _reach({0}, follow)
    whole = count((code[place] for place in sorted(reached)), len(reached))
    return Program(whole, _loops(code, follow, reached))


def _loops(code: list[Instruction], follow: dict[int, set[int]], reached: set[int]) -> list[Counts]:
    before: dict[int, set[int]] = {place: set() for place in reached}
    for place in reached:
        for after in follow[place]:
            before[after].add(place)
    bodies: dict[int, set[int]] = {}
    for place in sorted(reached):
        for head in follow[place]:
            if head <= place:
                body = _reach({place}, {**before, head: set()}) | {head}
                # A jump back to where other ways lead too is no loop: its body would begin at the entry.
                if head == 0 or 0 not in body:
                    bodies[head] = bodies.get(head, set()) | body
    inner = [
        (head, body)
        for head, body in sorted(bodies.items())
        if not any(other in body for other in bodies if other != head)
    ]
    return [count((code[place] for place in sorted(body)), _shortest(head, body, follow)) for head, body in inner]


def _following(code: list[Instruction]) -> dict[int, set[int]]:
    """For the place of each instruction the places that can come next."""
    places = {instruction.address: place for place, instruction in enumerate(code)}
    joins: dict[str, int] = {}
    follow: dict[int, set[int]] = {}
    for place, instruction in enumerate(code):
        onward = {place + 1} if place + 1 < len(code) else set()
        target = instruction.target
        there = places.get(target) if target is not None else None
        barrier = _BARRIER.search(instruction.operands)
        opcode = instruction.opcode
        if opcode == "BSSY" and barrier and there is not None:
            joins[barrier[0]] = there
        if opcode in ("BRA", "JMP") and there is not None:
            # With a second predicate among its operands a branch is not always taken either.
            certain = not instruction.guard and re.fullmatch(r"0x[0-9a-f]+", instruction.operands)
            onward = {there} if certain else onward | {there}
        elif opcode == "CALL" and there is not None:
            onward |= {there}
        elif opcode == "BSYNC" and barrier and barrier[0] in joins:
            onward = onward | {joins[barrier[0]]} if instruction.guard else {joins[barrier[0]]}
        elif opcode in ("EXIT", "RET", "BRX", "KILL") and not instruction.guard:
            onward = set()
        follow[place] = onward
    return follow


def _reach(start: set[int], edges: dict[int, set[int]]) -> set[int]:
    reached, waiting = set(start), list(start)
    while waiting:
        for after in edges[waiting.pop()]:
            if after not in reached:
                reached.add(after)
                waiting.append(after)
    return reached


def _shortest(head: int, body: set[int], follow: dict[int, set[int]]) -> int:
    """The fewest instructions from `head` back to it."""
    best = {head: 1}
    waiting = [(1, head)]
    while waiting:
        length, place = heapq.heappop(waiting)
        if head in follow[place]:
            return length
        for after in follow[place] & body:
            if length + 1 < best.get(after, len(body) + 1):
                best[after] = length + 1
                heapq.heappush(waiting, (length + 1, after))
    return len(body)

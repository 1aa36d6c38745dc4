"""What is read from machine code, and when a kernel counts as worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu.compiled import sass
from benchmarks.gpu.compiled.figures import (
    Figures,
    changes,
    faults,
    main_loop,
    resident_blocks,
    units_of,
    unrolled,
)
from benchmarks.gpu.compiled.table import FILE, Table, page, read, write


def code(*lines: str) -> str:
    """What cuobjdump prints of instructions, 16 bytes each: a line with its encoding, and one with the rest of it."""
    printed = ["\tcode for sm_90a", "\t\tFunction : some_kernel"]
    for number, line in enumerate(lines):
        printed += [f"        /*{number * 16:04x}*/                   {line} ;    /* 0x0000580046037fae */", " " * 60]
    return "\n".join(
        [*printed, "\t\tFunction : another", "        /*0000*/                   LDL R1, [R2] ;  /* 0x0 */"]
    )


# An outer loop (30 to e0) around an inner one (50 to c0) with a part that is skipped as a rule (80 to 90).
pytestmark = pytest.mark.unshipped
NESTED = code(
    "S2R R0, SR_CTAID.X",  # 00
    "LDG.E.64 R2, desc[UR4][R2.64]",
    "STL [R1], R2",
    "MOV R4, RZ",  # 30: the outer loop
    "LDL R5, [R1]",
    "LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR14][R46.64], P5",  # 50: the inner loop
    "LDG.E.U8 R6, desc[UR4][R2.64]",
    "@P0 BRA 0xa0",
    "DADD R8, R8, R10",  # 80
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "HMMA.16816.F32.BF16 R72, R52.reuse, R68, RZ",  # a0
    "HADD2.F32 R6, -RZ, R6.H0_H0",
    "@!P1 BRA 0x50",  # c0
    "MUFU.EX2 R9, R9",
    "@P2 BRA 0x30",  # e0
    "EXIT",
    "BRA 0x100",
)


def test_the_inner_loop_is_counted_and_what_is_skipped_told_apart() -> None:
    program = sass.read(NESTED)
    (loop,) = program.loops
    assert (loop.instructions, loop.shortest) == (8, 6)
    assert (loop.tensor, loop.wide, loop.narrow, loop.double, loop.barriers, loop.convert) == (1, 1, 1, 1, 1, 1)
    assert (loop.local, loop.special) == (0, 0)
    # The whole has what can run alone: neither what fills up the end nor another function.
    assert (program.whole.instructions, program.whole.local, program.whole.narrow) == (16, 2, 2)


def test_a_jump_back_from_a_rare_part_is_no_loop() -> None:
    """The compiler puts what is rare behind the end, from where it jumps back into the middle."""
    program = sass.read(code("MOV R1, R2", "@P0 BRA 0x40", "IADD3 R1, R1, 0x1, RZ", "EXIT", "MOV R1, RZ", "BRA 0x20"))
    assert program.loops == []
    assert program.whole.instructions == 6


def test_threads_that_part_meet_where_the_code_says() -> None:
    """Of a loop with a part for some threads the body is whole: BSYNC goes where the last BSSY says."""
    program = sass.read(
        code(
            "MOV R1, R2",
            "BSSY B0, 0x60",  # 10: the loop
            "@P0 BRA 0x50",
            "FADD R1, R1, R2",
            "BSYNC B0",
            "BRA 0x90",  # 50: elsewhere, and back from there
            "IADD3 R1, R1, 0x1, RZ",  # 60
            "@P1 BRA 0x10",
            "EXIT",
            "FMUL R1, R1, R2",  # 90
            "BSYNC B0",
        )
    )
    (loop,) = program.loops
    assert loop.instructions == 9


def test_text_without_code_is_refused() -> None:
    with pytest.raises(ValueError, match="no machine code"):
        sass.read("cuobjdump fatal   : Unknown option")


def test_the_main_loop_is_the_one_that_multiplies() -> None:
    (loop,) = sass.read(NESTED).loops
    search = replace(loop, instructions=900, tensor=0)
    assert main_loop([search, loop]) == loop
    assert main_loop([search, replace(search, instructions=1)]) == search
    assert main_loop([]) is None


def test_a_loop_that_the_compiler_unrolled_goes_through_more() -> None:
    (loop,) = sass.read(NESTED).loops
    assert unrolled([replace(loop, commits=8)], [2]) == 4
    assert unrolled([replace(loop, commits=2)], [2]) == 1
    assert unrolled([loop], [0]) == 1


@pytest.mark.parametrize(
    "capability, warps, registers, shared, blocks",
    [
        (90, 4, 136, 71_680, 3),  # 17408 registers, of 65536; 72704 bytes, of 233472
        (80, 8, 255, 0, 1),  # A warp gets 8192 registers.
        (89, 4, 32, 0, 12),  # 48 warps
        (90, 1, 16, 0, 32),
        (89, 4, 64, 99 << 10, 1),
    ],
)
def test_blocks_of_a_multiprocessor(capability: int, warps: int, registers: int, shared: int, blocks: int) -> None:
    assert resident_blocks(capability, warps, registers, shared) == blocks


def test_a_loop_counts_its_units_by_constants_that_are_there() -> None:
    assert units_of("dense_kernel", {"N": 128, "K": 64}) == ("weight", 8192)
    assert units_of("some_kernel", {"N": 128}) == (None, 1)
    with pytest.raises(ValueError, match="no constant `N`"):
        units_of("attention_kernel", {"KEYS": 64})


@pytest.fixture
def figures() -> Figures:
    program = sass.read(NESTED)
    loop = replace(program.loops[0], instructions=500, shortest=500, shared=40, tensor=32, wide=16)
    return Figures(90, "attention_kernel", "8B", "decode", "", 4, 136, 71_680, 0, 3, program.whole, "key", 64, loop)


def test_what_is_worse_is_named(figures: Figures) -> None:
    loop = figures.loop
    assert loop is not None
    cases = {
        "instructions a key": replace(figures, loop=replace(loop, instructions=540)),
        "shortest a key": replace(figures, loop=replace(loop, shortest=540)),
        "spilled bytes": replace(figures, local=8),
        "blocks on a multiprocessor 3 → 2 (registers 136 → 168": replace(figures, blocks=2, registers=168),
        "tensor 32 → 0": replace(figures, loop=replace(loop, tensor=0)),
        "wide 16 → 0": replace(figures, loop=replace(loop, wide=0)),
        "narrow a key": replace(figures, loop=replace(loop, narrow=17)),
        "double a key": replace(figures, loop=replace(loop, double=20)),
        "convert a key": replace(figures, loop=replace(loop, convert=20)),
    }
    for reason, new in cases.items():
        found = changes(figures, new)
        assert len(found.worse) == 1 and found.worse[0].startswith(reason), (reason, found)
        assert not found.better
    assert changes(replace(figures, loop=replace(loop, instructions=540)), figures).better


def test_a_little_more_is_not_worse_and_neither_is_a_longer_trip(figures: Figures) -> None:
    loop = figures.loop
    assert loop is not None
    assert not changes(figures, replace(figures, loop=replace(loop, instructions=515))).worse
    # Twice the keys in a trip, and no more for each.
    twice = replace(loop, instructions=1000, shortest=1000, shared=80, narrow=2, double=2, barriers=2, convert=2)
    assert not changes(figures, replace(figures, units=128, loop=twice)).worse


def test_a_kernel_without_a_loop_is_compared_as_a_whole(figures: Figures) -> None:
    old = replace(figures, unit=None, units=1, loop=None)
    longer = replace(old, whole=replace(old.whole, instructions=40))
    assert changes(old, longer).worse == ["instructions a block 64 → 160"]


def test_rules_hold_whatever_was_before(figures: Figures) -> None:
    loop = figures.loop
    assert loop is not None
    assert not faults(figures)
    assert faults(replace(figures, loop=replace(loop, tensor=0))) == ["multiplies without tensor cores"]
    assert faults(replace(figures, loop=replace(loop, wide=0))) == ["loads nothing by 128 bits in its main loop"]
    assert faults(replace(figures, shared=300_000)) == ["wants 300000 bytes of shared memory, of 232448"]
    assert faults(replace(figures, local=8)) == ["spills 8 bytes a thread"]
    assert faults(replace(figures, blocks=0)) == ["no block fits on a multiprocessor"]


def test_a_table_is_read_as_it_was_written(figures: Figures, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("table") / "kernels.json"
    table = Table("3.9.0", (figures, replace(figures, capability=89, loop=None, unit=None)))
    write(table, file)
    assert read(file) == table
    assert file.with_suffix(".md").read_text(encoding="utf-8") == page(table)
    assert read(file.with_name("none.json")) == Table("", ())


def test_the_committed_table_keeps_the_rules_and_its_page_is_its_own() -> None:
    table = read()
    assert {row.capability for row in table.rows} == {80, 89, 90}
    assert [fault for row in table.rows for fault in faults(row)] == []
    assert FILE.with_suffix(".md").read_text(encoding="utf-8") == page(table)

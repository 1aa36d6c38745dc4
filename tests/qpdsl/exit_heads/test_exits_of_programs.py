"""`via amortized(…)` in programs: its layer, the heads of a folder, and what a model has none of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.exit_heads.exit_head import ExitHead, save_heads
from qpdsl.exit_heads.exit_record import ExitAgreement, ExitFigures, ExitRecord, LogitBound
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.model_location import locate
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import head_folders
from qpdsl.session.session import Session
from tests.support.executor.programs import run_all, texts

NOTHING = Files()
MODEL, LAYERS, WIDTH = "zoo/counting", 4, 256
PROGRAM = """model llm = "zoo/counting"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=3 via amortized(%s) temperature=0.8 max_tokens=30
}
"""


def results(arguments: str, *disabled: str, files: Files = NOTHING) -> list[InstanceResult]:
    file = parse_file(Source("test.qp", PROGRAM % arguments))
    plan = planned(lower(file, "p", Environment(files)), disabled=disabled)
    return run_all(plan, [{"problem": text} for text in texts(3)], session=Session(threads=1))


def written(folder: Path, *layers: int) -> None:
    """Heads that move hidden states at random."""
    generator = torch.Generator().manual_seed(2)
    bound = LogitBound(3.0, {"0.5": 1.0}, 0.5, {"0.5": 2.0, "1": 9.0})
    curve = (ExitAgreement(0.0, 1.0, 0.5, 0.5), ExitAgreement(0.9, 0.4, 1.0, 1.0))
    heads = []
    for layer in layers:
        share = layer / LAYERS
        figures = ExitFigures(layer, 100, (2.0, 0.5), share, 1 - share, 0.1, {"1": 0.5}, bound, curve)
        weight = 0.05 * torch.randn(WIDTH, WIDTH, generator=generator)
        heads.append(ExitHead(layer, weight, torch.zeros(WIDTH), figures))
    digest = location_digest(locate(MODEL))
    record = ExitRecord(MODEL, digest, LAYERS, WIDTH, 768, 1000, 0, tuple(head.figures for head in heads))
    folder.mkdir()
    save_heads(folder, record, heads)


def told(found: list[InstanceResult]) -> list[object]:
    assert all(result.error is None for result in found)
    return [(result.value, result.sampled_tokens, result.near_ties) for result in found]


@pytest.mark.parametrize("arguments", ["0.5, layer=1", "0.9", "0.7, layer=3, rerank=4", "certify=0.5, layer=3"])
def test_layers_that_wait_change_no_result(arguments: str) -> None:
    deferred, plain = results(arguments), results(arguments, "defer_layers")
    assert told(deferred) == told(plain)
    counts = [sum((result.counts[name] for result in deferred), 0) for name in ("exits", "refined", "draws")]
    assert counts[0] + counts[1] == counts[2] > 0
    assert [result.counts["exits"] for result in deferred] == [result.counts["exits"] for result in plain]
    assert all(result.counts["late"] + result.counts["skipped"] == 0 for result in plain)


def test_the_heads_of_a_folder_are_used(tmp_path: Path) -> None:
    folder = tmp_path / "heads"
    written(folder, 1, 2)
    files = Files(tmp_path)
    by_head = results('0.5, layer=2, head="heads"', files=files)
    assert told(by_head) == told(results('0.5, layer=2, head="heads"', "defer_layers", files=files))
    assert told(by_head) != told(results("0.5, layer=2"))
    # Without a layer it is that of the head that saves most.
    usual = results('0.5, head="heads"', files=files)
    assert told(usual) == told(results('0.5, layer=1, head="./heads"', files=files))


def test_the_head_of_a_folder_drafts_and_changes_no_token(tmp_path: Path) -> None:
    written(tmp_path / "heads", 1)

    def drafted(clause: str) -> list[InstanceResult]:
        file = parse_file(Source("test.qp", PROGRAM.replace("via amortized(%s)", clause)))
        plan = planned(lower(file, "p", Environment(Files(tmp_path))))
        return run_all(plan, [{"problem": text} for text in texts(3)], session=Session(threads=1))

    plain, through = drafted("draft none"), drafted('draft early_exit("heads", tokens=3)')
    assert told(through) == told(plain)
    assert sum(result.counts.get("drafted", 0) for result in through) > 0


def test_what_a_model_has_none_of_is_refused(tmp_path: Path) -> None:
    for result in results("0.5, layer=4"):
        assert result.error is not None and "it has 4 layers" in result.error
    folder = tmp_path / "heads"
    written(folder, 1)
    with pytest.raises(ModelError, match="no head for layer 2"):
        results('0.5, layer=2, head="heads"', files=Files(tmp_path))
    with pytest.raises(ModelError, match="there is no such folder"):
        results('0.5, head="none"', files=Files(tmp_path))


@pytest.mark.parametrize("clause", ['via amortized(0.5, head="%s")', 'draft eagle("%s")', 'draft early_exit("%s")'])
def test_a_folder_of_heads_lies_by_the_program_and_under_its_folder(tmp_path: Path, clause: str) -> None:
    def found(place: str, files: Files) -> tuple[str, ...]:
        file = parse_file(Source("p.qp", PROGRAM.replace("via amortized(%s)", clause % place)))
        return tuple(head_folders(planned(lower(file, "p", Environment(files)))))

    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    assert found("sub/heads", Files(own)) == found("./sub/../sub/heads", Files(own)) == (str(own / "sub" / "heads"),)
    assert found("../other/h", Files(own, (other,))) == (str(other / "h"),)
    for place, files in (
        ("../other/h", Files(own)),
        (str(other), Files(own)),
        ("heads", NOTHING),
        ("~/../../h", Files(own)),
    ):
        with pytest.raises(QpError) as refused:
            found(place, files)
        assert [fault.code for fault in refused.value.diagnostics] == ["QP228"]

"""What `--cluster` names."""

from __future__ import annotations

import pytest

from qpdsl.cluster.cluster_address import ClusterAddress
from qpdsl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local:4", ClusterAddress("local", 4, 4)),
        ("local:1..4", ClusterAddress("local", 1, 4)),
        ("ray:2", ClusterAddress("ray", 2, 2)),
        ("ray:2?cpus=4", ClusterAddress("ray", 2, 2, None, 4.0)),
        ("ray://head:10001?replicas=8", ClusterAddress("ray", 8, 8, "head:10001")),
        (
            "ray://10.0.0.1:10001/?replicas=2..1000&cpus=16&gpus=0.5",
            ClusterAddress("ray", 2, 1000, "10.0.0.1:10001", 16.0, 0.5),
        ),
    ],
)
def test_addresses(text: str, address: ClusterAddress) -> None:
    assert ClusterAddress.parse(text) == address
    assert ClusterAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no cluster"),
        ("4", "names no cluster"),
        ("slurm:4", "names no cluster"),
        ("local", "names no cluster"),
        ("local:", "how many replicas"),
        ("local:0", "1 to 256"),
        ("local:4..2", "1 to 256"),
        ("local:100000", "1 to 256"),
        ("local:-1", "how many replicas"),
        ("local:2?cpus=2", "takes no `cpus`"),
        ("ray:2?replicas=3", "by N"),
        ("ray://head?replicas=3", "no host and port"),
        ("ray://head:10001", "how many replicas"),
        ("ray://head:10001?replica=3", "did you mean `replicas`"),
        ("ray://head:10001?replicas=3&replicas=4", "twice"),
        ("ray://head:10001?replicas=3&cpus=many", "no number"),
        ("ray://head:10001?replicas=3&gpus=nan", "no number"),
    ],
)
def test_what_is_no_address(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClusterAddress.parse(text)

"""LinUCB's kernels against their torch twin and against the policy of the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from benchmarks.routing import device_router
from benchmarks.routing.device_router import Bandits
from benchmarks.routing.policies import LinUCBUpper
from qpdsl.executor.routing.linear import LinUCB
from tests.support.executor.paged_case import DEVICE

pytestmark = pytest.mark.unshipped
STEPS = 25


@pytest.mark.parametrize(
    ("routers", "arms", "features", "upper"), [(1, 3, 6, False), (5, 2, 3, True), (3, 4, 1, False)]
)
def test_arms_are_those_of_the_twin_and_of_the_host(routers: int, arms: int, features: int, upper: bool) -> None:
    random = np.random.default_rng(arms)
    make = LinUCBUpper if upper else LinUCB
    policies = [make(arms, features, beta=0.2) for _ in range(routers)]
    optimism = torch.tensor([0.2 if upper else -0.2], dtype=torch.float64, device=DEVICE)
    before = [policy.state() for policy in policies]
    kernel, twin = Bandits.from_states(before, DEVICE), Bandits.from_states(before, DEVICE)
    true = random.random((routers, arms, features))
    for step in range(STEPS):
        contexts = random.random((routers, features)) / np.sqrt(features)
        given = torch.tensor(contexts, device=DEVICE)
        taken = device_router.choose(kernel, given, optimism)
        assert taken.tolist() == device_router.plain_choose(twin, given, optimism).tolist()
        assert taken.tolist() == [policy.choose(x) for policy, x in zip(policies, contexts, strict=True)]
        losses = (true @ contexts[:, :, None])[:, :, 0] + random.normal(0, 0.01, (routers, arms))
        paid = losses[np.arange(routers), taken.cpu().numpy()]
        # Now and then a router is not told.
        told = taken if step % 5 else torch.where(torch.arange(routers, device=DEVICE) == 0, -1, taken).int()
        device_router.learn(kernel, given, told, torch.tensor(paid, device=DEVICE))
        device_router.plain_learn(twin, given, told, torch.tensor(paid, device=DEVICE))
        for policy, context, arm, loss in zip(policies, contexts, told.tolist(), paid, strict=True):
            if arm >= 0:
                policy.learn(context, arm, float(loss))
    torch.testing.assert_close(kernel.inverse, twin.inverse, rtol=0, atol=1e-12)
    torch.testing.assert_close(kernel.theta, twin.theta, rtol=0, atol=1e-12)
    # What was learned on the device goes on at the host.
    later = make(arms, features, beta=0.2)
    later.restore(kernel.to_states(before)[-1])
    np.testing.assert_allclose(later.theta, policies[-1].theta, rtol=0, atol=1e-12)

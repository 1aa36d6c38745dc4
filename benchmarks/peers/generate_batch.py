"""transformers' continuous batching, what `generate_batch` runs on, in its steady state.

One manager for all runs, its blocks fixed and its thread warm: what `generate_batch` sets up anew for each call costs
more than the decoding of a small model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager

from benchmarks.peers.peer import Room, Tokens

# It reports every setting that it had to guess; what fails is raised below.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)

_PAGE = 32
_BATCH_TOKENS = 2048
_PATIENCE_SECONDS = 600.0


class GenerateBatch:
    """At most `room.slots` requests a batch, blocks for all of them, and room for the blocks that prompts share."""

    def __init__(self, model: PreTrainedModel, room: Room) -> None:
        self._model = model
        self._room = room
        self._managers: dict[int, ContinuousBatchingManager] = {}

    def _manager(self, samples: int, context: int) -> ContinuousBatchingManager:
        """The running manager for requests of so many samples each; one runs at a time."""
        if samples not in self._managers:
            self.close()
            sampling = GenerationConfig(
                do_sample=samples > 1, num_return_sequences=samples, max_new_tokens=context, top_k=0, pad_token_id=0
            )
            config = ContinuousBatchingConfig(
                page_size=_PAGE,
                num_blocks=(self._room.slots + 2) * (-(-self._room.context // _PAGE) + 1),
                max_batch_tokens=_BATCH_TOKENS,
                max_requests_per_batch=self._room.slots,
                allow_block_sharing=self._room.sharing,
            )
            manager = self._model.init_continuous_batching(sampling, continuous_batching_config=config)
            manager.start()
            self._managers[samples] = manager
        return self._managers[samples]

    def run(self, prompts: Tokens, lengths: Sequence[int]) -> Tokens:
        """All requests at once; the manager admits them as others end."""
        manager = self._manager(1, self._room.context)
        ids = [
            manager.add_request(list(prompt), max_new_tokens=length, eos_token_id=-1)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        results = self._results(manager, len(ids))
        return [results[name] for name in ids if name is not None]

    def fan_out(self, prompt: Sequence[int], samples: int, length: int) -> Tokens:
        """One request with `num_return_sequences`; the prompt is prefilled once and its blocks are forked."""
        manager = self._manager(samples, length)
        manager.add_request(list(prompt), max_new_tokens=length, eos_token_id=-1)
        return list(self._results(manager, samples).values())

    def _results(self, manager: ContinuousBatchingManager, count: int) -> dict[str, tuple[int, ...]]:
        results: dict[str, tuple[int, ...]] = {}
        while len(results) < count:
            result = manager.get_result(timeout=_PATIENCE_SECONDS)
            if result is None:
                raise RuntimeError("continuous batching stopped before all requests were done")
            if result.error is not None:
                raise RuntimeError(f"continuous batching failed a request: {result.error}")
            if result.is_finished():
                results[result.request_id] = tuple(result.generated_tokens)
        return results

    def close(self) -> None:
        """Ends the manager's thread."""
        for manager in self._managers.values():
            manager.stop(block=True, timeout=10)
        self._managers.clear()

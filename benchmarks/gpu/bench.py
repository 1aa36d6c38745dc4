"""Where the cases of a run are timed: a CUDA device, or the processor in a dry run, where no time means anything."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# What the processor stands for in a dry run: bytes and operations a second, and bytes of memory.
_DRY_BANDWIDTH, _DRY_PEAK, _DRY_MEMORY = 1e10, 1e11, 64 << 20


@dataclass(frozen=True, slots=True)
class Bench:
    """`device` is "cuda", or "cpu" for a dry run over tiny shapes."""

    device: str = "cuda"

    @property
    def dry(self) -> bool:
        return self.device == "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and states."""
        return torch.float32 if self.dry else torch.bfloat16

    @property
    def l2(self) -> int:
        """Bytes of the L2 cache."""
        return 1 << 16 if self.dry else torch.cuda.get_device_properties(0).L2_cache_size

    @property
    def memory(self) -> int:
        """Bytes that are free."""
        return _DRY_MEMORY if self.dry else torch.cuda.mem_get_info()[0]

    def seconds(self, call: Callable[[int], object], layers: int, calls: int = 24, replays: int = 15) -> float:
        """Of one `call(layer)`: the median over replays of a graph with calls going round the layers."""
        for layer in range(min(layers, 3)):
            call(layer)
        if self.dry:
            start = time.perf_counter()
            call(0)
            return max(time.perf_counter() - start, 1e-9)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(calls):
                call(index % layers)
        graph.replay()
        times = []
        for _ in range(replays):
            start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start_event.record()
            graph.replay()
            end_event.record()
            end_event.synchronize()
            times.append(start_event.elapsed_time(end_event) / 1000 / calls)
        return statistics.median(times)

    def copy_bandwidth(self) -> float:
        """Bytes a second, read and written, of the fastest of three sizes of device-to-device copies."""
        if self.dry:
            return _DRY_BANDWIDTH
        best = 0.0
        for mebibytes in (256, 1024, 2048):
            source = torch.randint(0, 255, (mebibytes << 20,), dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            time_of = self.seconds(lambda _, s=source, t=target: t.copy_(s), 1, calls=4)
            best = max(best, 2 * source.numel() / time_of)
        return best

    def matrix_peak(self) -> float:
        """Floating-point operations a second of a bfloat16 product of random 8192 × 8192 matrices."""
        if self.dry:
            return _DRY_PEAK
        a, b = (torch.randn(8192, 8192, device=self.device, dtype=self.dtype) for _ in range(2))
        return 2 * 8192**3 / self.seconds(lambda _: a @ b, 1, calls=4)

    def wait(self) -> None:
        """Until the device has done all that was launched."""
        if not self.dry:
            torch.cuda.synchronize()

    def free(self) -> None:
        """Gives back the memory of what nobody refers to any more."""
        gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()

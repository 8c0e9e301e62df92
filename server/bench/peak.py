"""How much memory a training step really takes, beside what was planned.

OpenCL's buffers are counted by our allocator. numpy's and PyTorch's arrays are counted here, in
steps of their own that are not timed: both counters slow what they count.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from client.errors import DeviceError
from server.bench.workloads import TorchSteps, import_torch


def traced_peak(build: Callable[[], Callable[[], object]]) -> int:
    """Most bytes that Python objects, numpy's arrays included, take while ``build``'s result runs.

    What was there before ``build`` does not count, what it leaves behind does; nor what a library
    allocates by itself (OpenBLAS's packed blocks, some MiB).
    """
    gc.collect()
    tracemalloc.start()
    try:
        work = build()
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def torch_peak(steps: TorchSteps) -> int:
    """Most bytes of PyTorch's tensors alive at one time in a training step, by its profiler.

    Parameters, optimizer state, buffers and the data set, which are there before the step, and
    the highest sum of what the step allocates less what it frees. Not what oneDNN allocates
    beside PyTorch's allocator.
    """
    profiler = import_torch().profiler
    steps.run(2)  # the optimizer's state is there now
    steps.drop_grads()  # frees of what was allocated before the profile are not seen
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        steps.run(1)
    with TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    memory = [e for e in events if e.get("name") == "[memory]"]
    if not memory:
        raise DeviceError("PyTorch's profiler recorded no allocations in a training step")
    live = highest = 0
    for event in sorted(memory, key=lambda e: float(e["ts"])):
        live += int(event["args"]["Bytes"])
        highest = max(highest, live)
    return steps.resident_nbytes() + highest

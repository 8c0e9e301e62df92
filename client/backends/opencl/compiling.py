"""Kernels compiled before their first launch, by several processes at once.

PoCL compiles a kernel for a processor when it is first launched, holding a lock: one processor
compiles while the others wait. What it compiled it keeps on disk, for all processes. So children
(`python -m client.backends.opencl.compiling`) launch a share of the kernels each, and this process
its own share.

Such a launch is of one work-group, with the arguments that it will have, but on a buffer that
nobody reads: the right sizes matter, for kernels whose addresses depend on no content. A child that
fails costs its share of the time: what it leaves is compiled at the first launch, as ever.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyopencl as cl

from client.backends.opencl.discover import find
from client.backends.opencl.joined import CONVOLUTIONS
from client.children import environment

log = logging.getLogger(__name__)

CONTENT_FREE = ("batchnorm", *CONVOLUTIONS, "gemm", "recurrent", "rownorm")
"""Sources whose kernels read and write at places that depend on their sizes alone, not on what
buffers hold; those that take longest to compile are among them."""

FEW = 12
"""A child's start costs as much as it takes to compile some kernels."""

MOST_PROCESSES = 4
"""Each takes some 200 MB."""

HANGS_AFTER_S = 120.0  # the supervisor of a worker waits 300 s for a first command


Scalar = tuple[str, float]
"""Type and value of an argument."""


@dataclass(frozen=True)
class Job:
    """A kernel to compile: its name in the program, a work-group, its arguments.

    Those that are buffers are None.
    """

    kernel: str
    local: tuple[int, ...]
    args: tuple[Scalar | None, ...]


@dataclass(frozen=True)
class Work:
    """A program's jobs; its buffers have at most ``nbytes``."""

    device: str  # its key
    text: str
    options: str
    nbytes: int
    jobs: tuple[Job, ...]


def compile_ahead(work: Work, program: cl.Program, queue: cl.CommandQueue) -> None:
    """Do the work, in children and in this process."""
    processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, len(work.jobs) // FEW)
    if processes < 2:
        return
    shares = [work.jobs[i::processes] for i in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        children = [pool.submit(_child, replace(work, jobs=share)) for share in shares[1:]]
        try:
            run(shares[0], work.nbytes, program, queue)
        except cl.Error as e:  # whoever needs the kernel sees it again
            log.warning("kernels are compiled at their first launch: compiling ahead failed: %s", e)
    for child in children:
        child.result()


def run(jobs: Sequence[Job], nbytes: int, program: cl.Program, queue: cl.CommandQueue) -> None:
    """Launch each once."""
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, nbytes)
    try:
        for job in jobs:
            kernel = cl.Kernel(program, job.kernel)
            for i, arg in enumerate(job.args):
                kernel.set_arg(i, buffer if arg is None else np.dtype(arg[0]).type(arg[1]))
            cl.enqueue_nd_range_kernel(queue, kernel, job.local, job.local)
            queue.finish()
    finally:
        buffer.release()


def _child(work: Work) -> None:
    """Let a child do the work; where it cannot, that is said."""
    try:
        subprocess.run(
            [sys.executable, "-m", __name__],
            env=environment(),
            input=json.dumps(asdict(work)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANGS_AFTER_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        why = f"took more than {HANGS_AFTER_S:.0f} s"
    except OSError as e:
        why = f"cannot be started: {e}"
    except subprocess.CalledProcessError as e:
        why = f"ended with exit code {e.returncode}: {(e.stderr.strip().splitlines() or [''])[-1]}"
    else:
        return
    log.warning("kernels are compiled as they are launched: the process for that %s", why)


def main() -> int:
    """Do the work that comes as JSON on stdin."""
    asked = json.load(sys.stdin)
    found = [device for info, device in find() if info.key == asked["device"]]
    if not found:
        print(f"no device {asked['device']}", file=sys.stderr)  # noqa: T201
        return 1
    jobs = [Job(job["kernel"], tuple(job["local"]), tuple(job["args"])) for job in asked["jobs"]]
    context = cl.Context(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program = cl.Program(context, asked["text"]).build(asked["options"])
    run(jobs, asked["nbytes"], program, cl.CommandQueue(context))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Python imports this at its start where this folder is on PYTHONPATH.

So a worker process of a test has the backends ``brittle`` and numpy and no other, whatever this
machine has, and trains as slowly as the test asks; and no hook for it is in client/.

HOLD    a file: while it is there, a training step waits
STEP_S  how long a training step takes at least
"""

import os
import time
from pathlib import Path

import client.backends
from client.backends.numpy.program import NumpyProgram

client.backends.__path__.append(str(Path(__file__).parent))
client.backends.names = lambda: ("brittle", "numpy")

_step = NumpyProgram.step


def _slow_step(*arguments: object) -> None:
    time.sleep(float(os.environ.get("STEP_S", "0")))
    while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
        time.sleep(0.01)
    _step(*arguments)


NumpyProgram.step = _slow_step

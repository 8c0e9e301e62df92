"""What a warm round costs beside training, where the device worker trains.

    python tests/federated/measure_worker.py [MODEL] [ROUNDS]

Each message finds a ClientApp that has just started: a session of its own, which dials the broker
anew. Prints, for the rounds after the first one, the median and the largest of everything between
a message's arrival in the ClientApp and its reply, the phase train excepted.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from client.app import session_of
from client.config import load_experiment
from server import simulate
from server.observer import Observer
from server.store import Store

QUICKSTART = Path(__file__).parent.parent.parent / "configs" / "quickstart.yaml"


class NewClientApps(Observer):
    """Makes each node's ClientApp forget its session, as one in a process of its own has none."""

    def node_started(self, partition: str) -> None:
        session_of.cache_clear()


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "lenet5"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    settings = (f"model={model}", f"federation.rounds={rounds}", "devices.backend=numpy")
    experiment = load_experiment(QUICKSTART, settings)
    experiment = replace(experiment, train=replace(experiment.train, local_epochs=1))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulate.start(experiment, Path.cwd(), out, NewClientApps(), isolate=True)
        with Store.read(out / "run.db") as store:
            rows = store.node_rounds()
    warm = [row.record for row in rows if row.round > 1 and row.record is not None]
    rest_s = [r.wall_s - r.phases["train"] for r in warm]
    print(f"{model}, {len(warm)} warm rounds of a node: median and largest in ms")
    print(f"all but training  {1e3 * statistics.median(rest_s):8.2f} {1e3 * max(rest_s):8.2f}")
    for phase in (p for p in warm[0].phases if p != "train"):
        times_s = [r.phases[phase] for r in warm]
        print(f"  {phase:15} {1e3 * statistics.median(times_s):8.2f} {1e3 * max(times_s):8.2f}")
    shares = [r.unattributed_s / r.wall_s for r in warm]
    print(f"unattributed share of the round: median {statistics.median(shares):.2%}")


if __name__ == "__main__":
    main()

"""The device worker: a broker in this process, real worker processes, and what kills them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from machines import wait_until

from client.backends.recipe import Hyper
from client.errors import DataError, DeviceError, MismatchError, WorkerError
from client.model import initialise
from client.record import NodeRecord, PlacedLayout, Placement
from client.timing import RoundClock, on_phase
from client.trainer import Outcome, Task
from client.worker import broker as broker_module
from client.worker import supervisor as supervisor_module
from client.worker.broker import Broker, Job, WorkerLink
from client.worker.protocol import (
    ADDRESS_VARIABLE,
    PROTOCOL,
    TOKEN_KEY,
    TOKEN_VARIABLE,
    parts,
    read_token,
)
from client.worker.protocol.dial import dial
from client.worker.protocol.worker_pb2 import Answer, Command, Hello, Part
from client.worker.protocol.worker_pb2_grpc import BrokerStub
from client.worker.remote import RemoteSession
from client.worker.session import Session
from client.worker.supervisor import Supervisor, hosted_worker
from server import simulate
from server.store import Store
from tests import fakes

HERE = Path(__file__).parent
START = initialise(fakes.model(), seed=1)
TASK = Task(
    round=1, seed=3, partition="node-0", local_epochs=2, batch=8, hyper=Hyper(lr=0.1, momentum=0.9)
)
ENDLESS = replace(TASK, local_epochs=10**7)
NUMPY = {"devices": {"backend": "numpy"}}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and the backend ``brittle`` in workers."""
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOLD", str(tmp_path / "hold"))
    monkeypatch.setenv("PYTHONPATH", str(HERE / "worker_site"), prepend=os.pathsep)
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)


@dataclass
class Host:
    """A broker with its supervisor, and sessions that dial it."""

    broker: Broker
    supervisor: Supervisor
    folder: Path

    def session(self, **over: Any) -> RemoteSession:
        token = read_token(self.broker.environment)
        experiment = fakes.experiment(self.folder, **over)
        return RemoteSession(experiment, self.folder, self.broker.address, token)


@contextlib.contextmanager
def hosted(folder: Path, deadline_s: float | None = None) -> Iterator[Host]:
    broker = Broker()
    supervisor = Supervisor(broker, deadline_s)
    try:
        yield Host(broker, supervisor, folder)
    finally:
        supervisor.stop()
        broker.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with hosted(tmp_path) as host:
        yield host


def a_round(
    session: Session | RemoteSession, task: Task = TASK, node: str = "node-0"
) -> tuple[Outcome, NodeRecord]:
    asked = replace(task, partition=node)
    return session.train(asked, None, START, None, RoundClock())


def here(folder: Path, task: Task = TASK) -> Outcome:
    """The same round in this process, on numpy."""
    return a_round(Session(fakes.experiment(folder, **NUMPY), folder), task)[0]


def assert_equal(a: Outcome, b: Outcome) -> None:
    np.testing.assert_array_equal(a.params, b.params)
    assert (a.metrics, a.num_examples) == (b.metrics, b.num_examples)


def but_for_times(record: NodeRecord) -> dict[str, Any]:
    times = ("wall_s", "phases", "unattributed_s", "traffic", "decision")
    return {k: v for k, v in json.loads(record.to_json()).items() if k not in times}


def events(record: NodeRecord) -> list[str]:
    return [event.kind for event in record.events]


def backend(record: NodeRecord) -> str:
    return fakes.backend_of(record)


def gone(pid: int, limit_s: float = 120.0) -> bool:
    """Has the process ended, or does it within the limit? (A zombie has.)"""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def when_training(host: Host, do: Callable[[int], None], times: int = 1) -> Iterator[None]:
    """``do`` is called with the worker's process id when a command begins to train there.

    However late that is heard of here, training waits for it.
    """
    left = [times]
    hold = host.folder / "hold"
    hold.touch()

    def phase_began(name: str) -> None:
        if name == "train" and left[0]:
            left[0] -= 1
            pid = host.supervisor.worker_pid
            assert pid is not None
            do(pid)
            if left[0] == 0:
                hold.unlink()

    token = on_phase.set(phase_began)
    try:
        yield
    finally:
        on_phase.reset(token)
        hold.unlink(missing_ok=True)
    assert left == [0], "the worker did not come to train that often"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def halt(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


# -- a round -----------------------------------------------------------------------------------


def test_results_are_those_of_a_session_in_this_process(host: Host, tmp_path: Path) -> None:
    over = NUMPY | {"data": {"node_holdout": 0.2}}
    remote = host.session(**over)
    local = Session(fakes.experiment(tmp_path, **over), tmp_path)
    for number in (1, 2):
        outcome, record = a_round(remote, replace(TASK, round=number))
        expected, wanted = a_round(local, replace(TASK, round=number))
        assert_equal(outcome, expected)
        assert but_for_times(record) == but_for_times(wanted)
    metrics, record = remote.evaluate("node-1", None, START, RoundClock())
    assert metrics == local.evaluate("node-1", None, START, RoundClock())[0]
    assert record.num_examples == metrics.count


def test_a_nodes_own_file_is_trained_on(host: Host, tmp_path: Path) -> None:
    own = fakes.write_examples(tmp_path / "own.npz", 21)
    outcome, _ = host.session(**NUMPY).train(
        replace(TASK, partition="own"), own, START, None, RoundClock()
    )
    assert outcome.num_examples == 21


def test_a_round_is_the_workers_phases_and_the_handover(host: Host) -> None:
    clock = RoundClock()
    seen: list[str] = []
    token = on_phase.set(seen.append)
    try:
        host.session(**NUMPY).train(TASK, None, START, None, clock)
    finally:
        on_phase.reset(token)
    timing = clock.stop()
    assert {"handover", "decode", "data", "plan", "build", "train"} <= set(timing.phases)
    assert all(seconds >= 0 for seconds in timing.phases.values())
    assert sum(timing.phases.values()) <= timing.wall_s
    assert seen[0] == "decode"  # who watches here sees what the worker does
    assert seen.index("train") < seen.index("download")


def test_a_second_round_opens_builds_and_loads_nothing(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("BRITTLE_CALLS", str(calls))
    _, record = a_round(host.session())
    assert backend(record) == "brittle"
    first = calls.read_text()
    assert set(first.split()) == {"devices", "open", "compile", "load"}
    pid = host.supervisor.worker_pid
    # another ClientApp, as Flower starts one for each message
    _, record = a_round(host.session(), replace(TASK, round=2))
    assert backend(record) == "brittle"
    assert calls.read_text() == first
    assert host.supervisor.worker_pid == pid


def test_a_recorded_placement_is_repeated_or_refused(host: Host) -> None:
    session = host.session(**NUMPY)
    _, record = a_round(session)
    _, again = session.train(TASK, None, START, record.placement, RoundClock())
    assert again.reason == "recorded choice"
    assert record.placement is not None
    [part] = record.placement.kept.parts
    more = replace(part, threads=part.threads + 1)
    other = Placement((PlacedLayout((more,)),))
    with pytest.raises(MismatchError, match="cannot be repeated here"):
        session.train(TASK, None, START, other, RoundClock())


def test_what_the_worker_raises_is_raised_here_and_it_goes_on(host: Host) -> None:
    session = host.session(**NUMPY)
    with pytest.raises(DataError, match="no node 'nobody' in this experiment"):
        a_round(session, node="nobody")
    pid = host.supervisor.worker_pid
    a_round(session)
    assert host.supervisor.worker_pid == pid


def test_another_experiment_takes_the_place_of_the_last(host: Host, tmp_path: Path) -> None:
    a_round(host.session(**NUMPY))
    other = host.session(**NUMPY, train={"momentum": 0.0}, seed=4)
    task = replace(TASK, hyper=Hyper(0.1), seed=4)
    local = Session(fakes.experiment(tmp_path, **NUMPY, seed=4), tmp_path)
    assert_equal(a_round(other, task)[0], a_round(local, task)[0])


# -- workers that die or hang ------------------------------------------------------------------


def test_a_killed_worker_costs_only_time(host: Host, tmp_path: Path) -> None:
    with when_training(host, kill):
        outcome, record = a_round(host.session(**NUMPY))
    assert_equal(outcome, here(tmp_path))
    assert events(record) == ["worker died"]
    assert record.events[0].message.startswith(
        "SIGKILL, last heard of in phase train on numpy; its last words:"
    )
    assert record.events[0].message.endswith("started again, the round is done again")


@pytest.mark.slow
def test_a_stopped_worker_is_killed_after_the_deadline(tmp_path: Path) -> None:
    halted: list[int] = []

    def halt_it(pid: int) -> None:
        halted.append(pid)
        halt(pid)

    with hosted(tmp_path, deadline_s=10.0) as host, when_training(host, halt_it):
        outcome, record = a_round(host.session(**NUMPY))
    assert_equal(outcome, here(tmp_path))
    assert events(record) == ["worker hung"]
    assert (
        "no sign of life for 10 s, last heard of in phase train on numpy; killed"
        in record.events[0].message
    )
    assert gone(halted[0])


@pytest.mark.slow
def test_a_worker_that_works_is_not_taken_for_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline runs from the last sign of life, not from the command's beginning."""
    monkeypatch.setenv("STEP_S", "0.6")  # 30 examples on a node, by 8: 4 steps an epoch
    deadline_s = 6.0
    with hosted(tmp_path, deadline_s) as host:
        _, record = a_round(host.session(**NUMPY), replace(TASK, local_epochs=4))
    assert record.phases["train"] > 1.5 * deadline_s, "too short to show anything"
    assert record.events == []


def ended(host: Host) -> bool:
    """Is it known here that the worker's process has ended?

    That takes some time after a SIGKILL, and the process may be a zombie before: its first thread
    is one while others are still being ended.
    """
    return host.supervisor.worker_pid is None


def test_a_worker_that_ended_between_rounds_is_replaced(host: Host, tmp_path: Path) -> None:
    session = host.session(**NUMPY)
    a_round(session)
    pid = host.supervisor.worker_pid
    assert pid is not None
    kill(pid)
    wait_until(lambda: ended(host), 60, lambda: f"process {pid} runs")
    outcome, record = a_round(session)
    assert_equal(outcome, here(tmp_path))
    assert host.supervisor.worker_pid != pid
    assert events(record) == ["worker died"]
    assert record.events[0].message.startswith("between two rounds: SIGKILL; its last words:")
    assert record.events[0].message.endswith(": started again")


def test_a_worker_that_was_ending_when_its_command_was_sent(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart from one that ended before and from one that ended at work; nor does it count as
    a failure of the command."""
    session = host.session(**NUMPY)
    a_round(session)
    killed = host.supervisor.worker_pid
    assert killed is not None
    halt(killed)  # it cannot be heard of any more
    real = WorkerLink.send

    def send(link: WorkerLink, part: Part) -> None:
        if link.pid == killed and part.HasField("command"):
            kill(killed)
        real(link, part)

    monkeypatch.setattr(WorkerLink, "send", send)
    with when_training(host, kill):  # so it takes two workers more
        outcome, record = a_round(session)
    assert_equal(outcome, here(tmp_path))
    assert events(record) == ["worker died"] * 2
    assert record.events[0].message.startswith("since the last round: SIGKILL; its last words:")
    assert record.events[1].message.startswith("SIGKILL, last heard of in phase train on numpy")


def test_a_worker_that_hung_up_between_rounds_is_replaced(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process need not have ended."""
    monkeypatch.setattr(supervisor_module, "CRASH_LIMIT_S", 0.1)
    session = host.session(**NUMPY)
    a_round(session)
    pid = host.supervisor.worker_pid
    assert pid is not None
    halt(pid)  # else it would end when it notices
    link = host.broker.wait_for_worker(pid, 0)
    assert link is not None
    link.close()
    assert link.ended.wait(60)
    outcome, record = a_round(session)
    assert_equal(outcome, here(tmp_path))
    assert events(record) == ["worker died"]
    assert record.events[0].message.startswith("between two rounds: hung up; its last words:")
    assert gone(pid)


def test_where_numpy_fails_too_the_clientapp_is_told(host: Host) -> None:
    with (
        when_training(host, kill, times=2),
        pytest.raises(
            WorkerError, match="worker died 2 times: SIGKILL, last heard of in phase train on numpy"
        ),
    ):
        a_round(host.session(**NUMPY))
    a_round(host.session(**NUMPY))  # and the next command works


def test_a_worker_that_cannot_start_is_an_error_with_its_last_words(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "site"
    broken.mkdir()
    (broken / "numpy.py").write_text("raise ImportError('this numpy is broken')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(WorkerError, match=r"worker died 2 times: exit code 1.*numpy is broken"):
        a_round(host.session(**NUMPY))


# -- backends that fail ------------------------------------------------------------------------


def test_a_backend_that_raises_is_refused_by_the_worker_itself(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRITTLE", "raise")
    outcome, record = a_round(host.session())
    assert_equal(outcome, here(tmp_path))
    assert backend(record) == "numpy"
    assert "device refused" in events(record)
    assert "worker died" not in events(record)


def test_a_backend_that_kills_the_worker_once_may_try_again(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRITTLE", "die")
    monkeypatch.setenv("BRITTLE_ONCE", str(tmp_path / "failed"))
    outcome, record = a_round(host.session())
    assert_equal(outcome, here(tmp_path))
    assert backend(record) == "brittle"
    assert events(record)[0] == "worker died"
    assert re.match("SIGKILL, last heard of in phase [a-z]+ on brittle", record.events[0].message)


@pytest.mark.parametrize("how", ["die", pytest.param("hang", marks=pytest.mark.slow), "discovery"])
def test_a_backend_that_takes_the_worker_down_twice_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("BRITTLE", how)
    kind, deadline_s = ("worker hung", 6.0) if how == "hang" else ("worker died", None)
    with hosted(tmp_path, deadline_s) as host:
        outcome, record = a_round(host.session())
        assert_equal(outcome, here(tmp_path))
        assert backend(record) == "numpy"
        assert events(record)[:4] == [kind, kind, "backend excluded", "fallback"]
        assert record.events[2].message.startswith("brittle: it took the worker down 2 times (")
        assert record.events[3].message.startswith("brittle is not used: it took the worker down")
        # a worker that starts later is told too
        pid = host.supervisor.worker_pid
        assert pid is not None
        kill(pid)
        outcome, record = a_round(host.session(), replace(TASK, round=2))
        assert backend(record) == "numpy"
        assert "fallback" in events(record)


def test_a_forced_backend_that_stays_out_is_an_error(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRITTLE", "die")
    monkeypatch.setattr("client.config.names", lambda: ("brittle", "numpy"))
    session = host.session(devices={"backend": "brittle"})
    with pytest.raises(DeviceError, match="brittle: it took the worker down 2 times"):
        a_round(session)


def test_all_backends_of_a_layout_that_takes_the_worker_down_twice_stay_out(host: Host) -> None:
    """Which of them it was nobody knows; the reference never is."""
    lost = supervisor_module._LostError("worker hung", "no sign of life", "alpha+brittle")
    assert [e.kind for e in host.supervisor._after(lost)] == ["worker hung"]
    said = host.supervisor._after(lost)
    assert [e.kind for e in said] == ["worker hung", "backend excluded", "backend excluded"]
    assert [e.message.split(":")[0] for e in said[1:]] == ["alpha", "brittle"]
    _, record = a_round(host.session())
    assert backend(record) == "numpy"


# -- ClientApps and brokers that go ------------------------------------------------------------

CLIENT_APP = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[1], sys.argv[1] + "/tests/federated"
from client.timing import RoundClock, on_phase
from client.worker.protocol import read_token
from client.worker.remote import RemoteSession
from tests.federated.test_worker import ENDLESS, NUMPY, START
from tests import fakes
folder = Path(sys.argv[2])
e = fakes.experiment(folder, **NUMPY)
s = RemoteSession(e, folder, os.environ["POCKETFED_BROKER"], read_token(os.environ))
on_phase.set(lambda name: print(name, flush=True))
s.train(ENDLESS, None, START, None, RoundClock())
"""


@contextlib.contextmanager
def client_app(folder: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A ClientApp's process whose training never ends, once it has begun."""
    root = str(HERE.parent.parent)
    command = [sys.executable, "-c", CLIENT_APP, root, str(folder)]
    with subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline().strip() != "train":
                assert process.poll() is None
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_clientapp_that_is_killed_leaves_the_worker_fit(host: Host, tmp_path: Path) -> None:
    with client_app(tmp_path, host.broker.environment) as process:
        pid = host.supervisor.worker_pid
        process.kill()
        outcome, record = a_round(host.session(**NUMPY))
    assert_equal(outcome, here(tmp_path))
    assert record.events == []
    assert host.supervisor.worker_pid == pid


HOST = """
import sys, threading, json
from client.worker.broker import Broker
from client.worker.supervisor import Supervisor
if __name__ == "__main__":
    broker = Broker()
    supervisor = Supervisor(broker)
    print(json.dumps(broker.environment), flush=True)
    sys.stdin.readline()
    print(supervisor.worker_pid, flush=True)
    threading.Event().wait()
"""


@pytest.mark.slow
def test_a_worker_ends_when_its_broker_is_killed(
    short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a temporary folder of the test's own: in another one, whoever starts next tidies up."""
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOST],
        env={**os.environ, "TMPDIR": str(short_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            variables = json.loads(process.stdout.readline())
            with client_app(tmp_path, variables) as app:
                process.stdin.write("\n")
                process.stdin.flush()
                pid = int(process.stdout.readline())
                assert not gone(pid, limit_s=0.1)
                process.kill()
                process.wait(120)
                assert gone(pid)
                app.wait(120)
            left = Path(variables[TOKEN_VARIABLE]).parent
            assert left.parent == short_path
            assert left.is_dir()
            Broker().close()
            assert not left.exists()  # the next host removes what a killed one leaves
        finally:
            process.kill()


def test_stopping_the_host_ends_the_worker_in_mid_command(tmp_path: Path) -> None:
    pids: list[int] = []
    errors: list[Exception] = []
    began = threading.Event()

    def train(host: Host) -> None:
        on_phase.set(lambda name: began.set() if name == "train" else None)
        try:
            a_round(host.session(**NUMPY), ENDLESS)
        except WorkerError as e:
            errors.append(e)

    with hosted(tmp_path) as host:
        thread = threading.Thread(target=train, args=(host,))
        thread.start()
        assert began.wait(120)
        assert host.supervisor.worker_pid is not None
        pids.append(host.supervisor.worker_pid)
    thread.join()
    assert gone(pids[0])
    assert "is being stopped" in str(errors[0])
    assert not host.broker.folder.exists()


def test_without_a_broker_the_clientapp_says_what_is_missing(
    short_path: Path, tmp_path: Path
) -> None:
    experiment = fakes.experiment(tmp_path, **NUMPY)
    session = RemoteSession(experiment, tmp_path, f"unix:{short_path}/nobody", "token")
    with pytest.raises(WorkerError, match=r"nobody cannot be reached: is the process that hosts"):
        a_round(session)


def test_two_brokers_on_one_machine_do_not_mix(host: Host, tmp_path: Path) -> None:
    with hosted(tmp_path) as other:
        for h in (host, other):
            assert_equal(a_round(h.session(**NUMPY))[0], here(tmp_path))
        assert host.broker.address != other.broker.address
        assert host.supervisor.worker_pid != other.supervisor.worker_pid
        token = read_token(other.broker.environment)
        experiment = fakes.experiment(tmp_path, **NUMPY)
        with pytest.raises(WorkerError, match="refused: wrong token"):
            a_round(RemoteSession(experiment, tmp_path, host.broker.address, token))


def test_the_hosted_worker_is_found_through_its_variables(tmp_path: Path) -> None:
    with hosted_worker() as variables:
        experiment = fakes.experiment(tmp_path, **NUMPY)
        address, token = variables[ADDRESS_VARIABLE], read_token(variables)
        assert_equal(
            a_round(RemoteSession(experiment, tmp_path, address, token))[0], here(tmp_path)
        )
    assert not Path(address.removeprefix("unix:")).parent.exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets have short names, wherever this machine keeps temporary files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["short", "with space", "x" * 80])
def test_socket_and_token_lie_in_the_hosts_folder_if_its_path_can_be_a_sockets(
    short_path: Path, tmp_path: Path, name: str
) -> None:
    """There nobody tidies up, and what a host that was killed left behind is taken over."""
    home = short_path / name
    (home / "broker").mkdir(parents=True)
    (home / "broker" / "token").write_text("of a former life")
    with hosted_worker(home=home) as variables:
        folder = Path(variables[ADDRESS_VARIABLE].removeprefix("unix:")).parent
        assert (folder == home / "broker") == (name == "short")
        assert folder.stat().st_mode & 0o777 == 0o700
        session = RemoteSession(
            fakes.experiment(tmp_path, **NUMPY),
            tmp_path,
            variables[ADDRESS_VARIABLE],
            read_token(variables),
        )
        assert_equal(a_round(session)[0], here(tmp_path))
    assert not folder.exists()


def test_a_host_whose_folder_was_tidied_up_ends_in_order(tmp_path: Path) -> None:
    with hosted(tmp_path) as host:
        a_round(host.session(**NUMPY))
        shutil.rmtree(host.broker.folder)
    assert host.supervisor.worker_pid is None


def test_an_isolated_simulation_ends_as_one_in_this_process(tmp_path: Path) -> None:
    over = NUMPY | {"data": {"node_holdout": 0.2}, "federation": {"evaluate_nodes": True}}
    experiment = fakes.experiment(tmp_path, **over)
    results = [
        simulate.start(experiment, tmp_path, tmp_path / name, isolate=name == "isolated")
        for name in ("plain", "isolated")
    ]
    assert results[0].model_file.read_bytes() == results[1].model_file.read_bytes()
    assert (results[0].final_loss, results[0].rounds) == (results[1].final_loss, 2)
    with Store.read(tmp_path / "isolated" / "run.db") as store:
        records = [row.record for row in store.node_rounds()]
    assert len(records) == 8  # 2 nodes train and evaluate in 2 rounds
    assert all(r is not None and "handover" in r.phases for r in records)
    assert ADDRESS_VARIABLE not in os.environ
    again = simulate.replay(results[1].run, tmp_path / "again", isolate=True)
    assert again.model_file.read_bytes() == results[0].model_file.read_bytes()


# -- the door ----------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.close()


def call(broker: Broker, name: str, *stream: Part, token: str | None = None) -> list[Part]:
    token = read_token(broker.environment) if token is None else token
    with dial(broker.address) as channel:
        method = getattr(BrokerStub(channel), name)
        return list(method(iter(stream), metadata=((TOKEN_KEY, token),), timeout=120))


@pytest.mark.parametrize("name", ["Submit", "Work"])
@pytest.mark.parametrize("token", ["", "wrong", "0" * 64])
def test_calls_without_the_token_are_refused_and_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture, name: str, token: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(broker, name, parts.hello(), token=token)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "was refused: wrong token" in caplog.text
    assert broker.jobs.empty()


def test_nobody_else_can_enter_or_read_the_token(broker: Broker) -> None:
    assert stat.S_IMODE(broker.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((broker.folder / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize(("name", "caller"), [("Submit", "ClientApp"), ("Work", "worker")])
def test_another_protocol_is_refused_at_the_door(broker: Broker, name: str, caller: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(broker, name, Part(hello=Hello(protocol=PROTOCOL + 1, version="9")))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert f"{caller} {PROTOCOL + 1} (pocketfed 9), broker {PROTOCOL}" in caught.value.details()


def test_another_protocol_is_a_mismatch_for_the_clientapp(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Part(hello=Hello(protocol=PROTOCOL + 1, version="9"))
    monkeypatch.setattr(parts, "hello", lambda pid=0: other)
    with pytest.raises(MismatchError, match="ClientApp and broker differ in protocol"):
        a_round(host.session(**NUMPY))


@pytest.mark.parametrize(
    "stream",
    [
        [],
        [Part()],
        [parts.hello()],
        [parts.hello(), parts.hello()],
        [parts.hello(), Part(answer=Answer())],
        [parts.hello(), Part(command=Command(params_nbytes=4))],
        [parts.hello(), Part(command=Command(params_nbytes=4)), Part(chunk=b"12345")],
    ],
    ids=str,
)
def test_broken_commands_are_refused(broker: Broker, stream: list[Part]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(broker, "Submit", *stream)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert broker.jobs.empty()


def test_bytes_that_are_no_message_do_no_harm(host: Host, tmp_path: Path) -> None:
    metadata = ((TOKEN_KEY, read_token(host.broker.environment)),)
    with dial(host.broker.address) as channel:
        for name in ("Submit", "Work"):
            raw = channel.stream_stream(f"/pocketfed.worker.v1.Broker/{name}")
            with pytest.raises(grpc.RpcError):
                list(raw(iter([b"\xff\xff\xff garbage"]), metadata=metadata, timeout=120))
    assert_equal(a_round(host.session(**NUMPY))[0], here(tmp_path))


def test_a_command_that_makes_no_sense_does_no_harm(host: Host, tmp_path: Path) -> None:
    nonsense = Command(experiment="{}", partition="node-0")
    answer = call(host.broker, "Submit", parts.hello(), Part(command=nonsense))[-1].answer
    assert answer.failure.error == "ConfigError"
    nonsense.experiment = "not JSON"
    answer = call(host.broker, "Submit", parts.hello(), Part(command=nonsense))[-1].answer
    assert answer.failure.error == "JSONDecodeError"
    assert_equal(a_round(host.session(**NUMPY))[0], here(tmp_path))


def test_more_clientapps_than_can_wait_are_turned_away(broker: Broker) -> None:
    for _ in range(broker_module.MAX_WAITING):
        broker.jobs.put(Job(Command(), b""))
    with pytest.raises(grpc.RpcError) as caught:
        call(broker, "Submit", parts.hello(), Part(command=Command()))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_stale_socket_is_replaced_a_live_one_is_not(short_path: Path) -> None:
    path = short_path / "s"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))  # never listened on: as a killed broker leaves it
    broker = Broker(f"unix:{path}")
    try:
        with pytest.raises(WorkerError, match="another broker listens there"):
            Broker(f"unix:{path}")
        with pytest.raises(grpc.RpcError) as caught:
            call(broker, "Submit")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # it is still there
    finally:
        broker.close()


def test_paths_that_are_no_place_for_a_socket_are_refused(short_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"cannot listen|cannot be used"):
        Broker(f"unix:{short_path}/no/such/folder")
    with pytest.raises(WorkerError, match="is longer than 100 bytes"):
        Broker(f"unix:/tmp/{'x' * 100}")

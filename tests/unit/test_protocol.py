"""The worker's protocol: parameters survive the journey, and what breaks its rules is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import __version__
from client.backends.recipe import Hyper
from client.errors import (
    DataError,
    DeviceError,
    MismatchError,
    MissingExtraError,
    ParityError,
    PocketfedError,
    WorkerError,
)
from client.record import Event
from client.trainer import Task
from client.worker.protocol import PROTOCOL, TOKEN_VARIABLE, convert, parts, read_token
from client.worker.protocol.worker_pb2 import Answer, Command, Hello, Part, Progress

TASK = Task(7, 2**63 - 1, "a", 3, 16, Hyper(0.1, 0.9, True, 1e-4, 0.01, 2.5, (0.8, 0.99), 1e-7))


def over_the_wire(stream: Iterator[Part]) -> Iterator[Part]:
    """Each part as its receiver reads it."""
    for part in stream:
        yield Part.FromString(part.SerializeToString())


C = parts.CHUNK_NBYTES


@pytest.mark.parametrize("nbytes", [0, 1, 3, C - 1, C, C + 1, 3 * C + 5])
@pytest.mark.parametrize("kind", [Command, Answer])
def test_parameters_come_out_as_they_went_in(nbytes: int, kind: type[Command | Answer]) -> None:
    content = np.random.default_rng(nbytes).bytes(nbytes)
    sent = [*parts.with_params(kind(id="x"), content), Part(progress=Progress(id="x"))]
    assert all(part.ByteSize() < C + 100 for part in sent)
    assert len(sent) == 2 + -(-nbytes // C)
    (message, received), (after, nothing) = parts.messages(over_the_wire(iter(sent)))
    assert isinstance(message, kind)
    assert message.id == "x"
    assert received == content
    assert isinstance(after, Progress)
    assert nothing == b""


@given(content=st.binary(max_size=64), size=st.integers(1, 17))
def test_any_content_comes_out_in_chunks_of_any_size(content: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "CHUNK_NBYTES", size)
        sent = over_the_wire(parts.with_params(Command(), content))
        assert [p for _, p in parts.messages(sent)] == [content]


def chunk(nbytes: int) -> Part:
    return Part(chunk=bytes(nbytes))


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        ([Part()], "an empty part"),
        ([chunk(3)], "found chunk, needs a message"),
        ([Part(command=Command(params_nbytes=5)), chunk(3)], "ends at byte 3 of 5"),
        ([Part(command=Command(params_nbytes=5)), Part(progress=Progress())], "at byte 0 of 5"),
        ([Part(command=Command(params_nbytes=5)), chunk(3), chunk(3)], "6 bytes .*, 5 were said"),
        ([Part(command=Command(params_nbytes=5)), chunk(0)], "a chunk of 0 bytes"),
        ([Part(answer=Answer(params_nbytes=2 * C)), chunk(C + 1)], f"a chunk of {C + 1} bytes"),
        ([Part(answer=Answer(params_nbytes=2**40))], "at most 4294967296"),
    ],
)
def test_streams_that_break_the_rules_are_refused(stream: list[Part], complaint: str) -> None:
    with pytest.raises(WorkerError, match=f"^broken stream: .*{complaint}"):
        list(parts.messages(stream))


# -- who speaks --------------------------------------------------------------------------------


def test_a_caller_says_what_it_speaks() -> None:
    hello = parts.check_hello(iter([parts.hello(pid=4)]), "worker")
    assert (hello.protocol, hello.version, hello.pid) == (PROTOCOL, __version__, 4)


def test_another_protocol_is_refused_in_one_line_with_both_versions() -> None:
    other = Part(hello=Hello(protocol=PROTOCOL + 1, version="9.9"))
    with pytest.raises(MismatchError) as caught:
        parts.check_hello(iter([other]), "worker")
    assert str(caught.value) == (
        f"worker and broker differ in protocol: worker {PROTOCOL + 1} (pocketfed 9.9), "
        f"broker {PROTOCOL} (pocketfed {__version__}): install the same pocketfed for both"
    )


@pytest.mark.parametrize("stream", [[], [Part()], [Part(command=Command())]])
def test_a_caller_that_does_not_say_it_is_refused(stream: list[Part]) -> None:
    with pytest.raises(WorkerError, match="ClientApp: did not begin by saying"):
        parts.check_hello(iter(stream), "ClientApp")


def test_the_token_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    assert read_token({TOKEN_VARIABLE: str(path)}) == "abc"
    with pytest.raises(WorkerError, match="is not set"):
        read_token({})
    with pytest.raises(WorkerError, match=re.escape(f"{path}x: the broker's token cannot be")):
        read_token({TOKEN_VARIABLE: f"{path}x"})


# -- our types ---------------------------------------------------------------------------------


def test_tasks_survive() -> None:
    message = convert.task_to_message(TASK)
    received = type(message).FromString(message.SerializeToString())
    assert convert.task_from_message(received, "a") == TASK
    assert convert.task_from_message(received, "b") == replace(TASK, partition="b")


def test_parameters_survive_bit_by_bit() -> None:
    params = np.array([0.1, -0.0, np.nan, np.inf, 1e-45], np.float32)
    received = convert.params_from_bytes(convert.params_to_bytes(params), 5)
    assert received.tobytes() == params.tobytes()
    assert received.flags.writeable


@pytest.mark.parametrize("nbytes", [0, 7, 12])
def test_parameters_of_another_model_are_refused(nbytes: int) -> None:
    with pytest.raises(WorkerError, match=f"{nbytes} bytes of parameters came, .* needs 8"):
        convert.params_from_bytes(bytes(nbytes), 2)


def test_events_survive() -> None:
    events = [Event("worker died", "SIGSEGV"), Event("fallback", "")]
    assert convert.events_from_message(convert.events_to_message(events)) == events


@pytest.mark.parametrize(
    "error",
    [
        DataError("x.npz: no such file"),
        DeviceError("lost"),
        ParityError("wrong"),
        MissingExtraError("sklearn", "data", "the data set digits"),
    ],
)
def test_our_errors_arrive_as_what_they_are(error: PocketfedError) -> None:
    received = convert.error_from_message(convert.failure_to_message(error))
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert received.exit_code == error.exit_code


def test_other_errors_arrive_as_the_workers_failure() -> None:
    received = convert.error_from_message(convert.failure_to_message(KeyError("x")))
    assert type(received) is WorkerError
    assert str(received) == "the worker failed: KeyError: 'x'"


@pytest.mark.parametrize("module", ["client.worker.session", "client.worker.protocol"])
def test_grpc_is_imported_only_where_a_broker_is(module: str) -> None:
    code = f"import sys, {module}; sys.exit('grpc' in sys.modules or 'google' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""A session in the device worker's process, reached through the broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import grpc

from client.backends.figures import Metrics
from client.config import Experiment
from client.data.shares import Shares
from client.errors import MismatchError, PocketfedError, WorkerError
from client.model.graph import Float32Array, Model
from client.record import NodeRecord, Placement, record_from_json
from client.timing import RoundClock, Timing, on_phase
from client.trainer import Outcome, Task
from client.worker.protocol import TOKEN_KEY, convert, parts
from client.worker.protocol.dial import dial
from client.worker.protocol.worker_pb2 import Answer, Command, Part, Progress
from client.worker.protocol.worker_pb2_grpc import BrokerStub


class RemoteSession:
    """Takes and returns what ``Session`` does; the work is done by the worker.

    What the worker raises is raised here. WorkerError if the broker cannot be reached, or if no
    worker survives the command; MismatchError if the broker speaks another protocol.
    """

    def __init__(self, experiment: Experiment, base: Path, address: str, token: str) -> None:
        self.experiment = experiment
        self.model: Model = experiment.build()
        self.shares = Shares(experiment, self.model, base)
        self._text = json.dumps(experiment.to_dict())
        self._base = base.resolve()
        self._address = address
        self._token = token
        self._channel = dial(address)

    def train(
        self,
        task: Task,
        path: Path | None,
        params: Float32Array,
        recorded: Placement | None,
        clock: RoundClock,
    ) -> tuple[Outcome, NodeRecord]:
        """See ``Session.train``."""
        command = self._command(Command.TRAIN, task.partition, path)
        command.task.CopyFrom(convert.task_to_message(task))
        if recorded is not None:
            command.recorded = json.dumps(asdict(recorded))
        answer, result, record = self._call(command, params, clock)
        return Outcome(result, convert.metrics_from_message(answer), answer.num_examples), record

    def evaluate(
        self, partition: str, path: Path | None, params: Float32Array, clock: RoundClock
    ) -> tuple[Metrics, NodeRecord]:
        """See ``Session.evaluate``."""
        command = self._command(Command.EVALUATE, partition, path)
        answer, _, record = self._call(command, params, clock)
        return convert.metrics_from_message(answer), record

    def close(self) -> None:
        """Hang up. The worker keeps what it has, for the next ClientApp."""
        self._channel.close()

    def _command(self, kind: Command.Kind.ValueType, partition: str, path: Path | None) -> Command:
        return Command(
            kind=kind,
            experiment=self._text,
            base=str(self._base),
            partition=partition,
            path=str(path.resolve()) if path is not None else "",
        )

    def _call(
        self, command: Command, params: Float32Array, clock: RoundClock
    ) -> tuple[Answer, Float32Array, NodeRecord]:
        """Send, wait, and put the worker's phases on this round's clock."""
        began_s = time.perf_counter()
        answer, content = self._submit(command, convert.params_to_bytes(params))
        if answer.HasField("failure"):
            raise convert.error_from_message(answer.failure)
        record = record_from_json(answer.record)
        record.events = [*convert.events_from_message(answer.events), *record.events]
        expected = self.model.num_values if command.kind == Command.TRAIN else 0
        result = convert.params_from_bytes(content, expected)
        clock.absorb(time.perf_counter() - began_s, Timing(record.wall_s, record.phases))
        return answer, result, record

    def _submit(self, command: Command, params: bytes) -> tuple[Answer, bytes]:
        stub = BrokerStub(self._channel)
        replies = stub.Submit(_request(command, params), metadata=((TOKEN_KEY, self._token),))
        phase = ""
        try:
            for message, content in parts.messages(replies):
                if isinstance(message, Answer):
                    return message, content
                if isinstance(message, Progress) and message.phase != phase:
                    phase = message.phase
                    _tell(phase)
        except grpc.RpcError as e:
            raise self._error(e) from None
        finally:
            replies.cancel()
        raise WorkerError(f"the broker at {self._address} hung up without an answer")

    def _error(self, error: grpc.RpcError) -> PocketfedError:
        assert isinstance(error, grpc.Call)
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            return MismatchError(details)
        if code == grpc.StatusCode.UNAVAILABLE:
            return WorkerError(
                f"the broker at {self._address} cannot be reached: "
                f"is the process that hosts the worker still running? ({details})"
            )
        return WorkerError(f"the broker at {self._address} refused: {details or code.name.lower()}")


def _request(command: Command, params: bytes) -> Iterator[Part]:
    yield parts.hello()
    yield from parts.with_params(command, params)


def _tell(phase: str) -> None:
    """What the worker begins is what this node does now."""
    listener = on_phase.get()
    if listener is not None:
        listener(phase)

"""Our types <-> the protocol's messages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from client import errors
from client.backends.figures import Metrics
from client.backends.recipe import Hyper
from client.errors import PocketfedError, WorkerError
from client.model.graph import Float32Array
from client.record import Event
from client.trainer import Task
from client.worker.protocol import worker_pb2

_ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, PocketfedError)
}


def params_to_bytes(params: Float32Array) -> bytes:
    """A model's flat values as little-endian float32."""
    return params.astype("<f4", copy=False).tobytes()


def params_from_bytes(content: bytes, num_values: int) -> Float32Array:
    """A model's flat values (a copy); WorkerError if they are not ``num_values``."""
    if len(content) != 4 * num_values:
        raise WorkerError(
            f"{len(content)} bytes of parameters came, the model needs {4 * num_values}"
        )
    return np.frombuffer(content, "<f4").astype(np.float32)


def task_to_message(task: Task) -> worker_pb2.Task:
    """A round's task, without the name of the partition: that is the command's."""
    return worker_pb2.Task(
        round=task.round,
        seed=task.seed,
        local_epochs=task.local_epochs,
        batch=task.batch,
        lr=task.hyper.lr,
        momentum=task.hyper.momentum,
        nesterov=task.hyper.nesterov,
        weight_decay=task.hyper.weight_decay,
        proximal_mu=task.hyper.proximal_mu,
        clip_norm=task.hyper.clip_norm,
        beta_1=task.hyper.betas[0],
        beta_2=task.hyper.betas[1],
        eps=task.hyper.eps,
    )


def task_from_message(message: worker_pb2.Task, partition: str) -> Task:
    """The inverse of ``task_to_message``."""
    hyper = Hyper(
        lr=message.lr,
        momentum=message.momentum,
        nesterov=message.nesterov,
        weight_decay=message.weight_decay,
        proximal_mu=message.proximal_mu,
        clip_norm=message.clip_norm,
        betas=(message.beta_1, message.beta_2),
        eps=message.eps,
    )
    return Task(
        round=message.round,
        seed=message.seed,
        partition=partition,
        local_epochs=message.local_epochs,
        batch=message.batch,
        hyper=hyper,
    )


def metrics_from_message(answer: worker_pb2.Answer) -> Metrics:
    """The metrics of an answer."""
    correct = answer.correct if answer.HasField("correct") else None
    return Metrics(answer.loss_sum, correct, answer.count, answer.weight)


def metrics_to_message(metrics: Metrics, answer: worker_pb2.Answer) -> None:
    """Set the metrics of an answer."""
    answer.loss_sum, answer.count = metrics.loss_sum, metrics.count
    answer.weight = metrics.weight
    if metrics.correct is not None:
        answer.correct = metrics.correct


def events_to_message(events: Iterable[Event]) -> list[worker_pb2.Event]:
    """Events of a record."""
    return [worker_pb2.Event(kind=e.kind, message=e.message) for e in events]


def events_from_message(events: Iterable[worker_pb2.Event]) -> list[Event]:
    """The inverse of ``events_to_message``."""
    return [Event(e.kind, e.message) for e in events]


def failure_to_message(error: Exception) -> worker_pb2.Failure:
    """An error on its way to the ClientApp."""
    return worker_pb2.Failure(error=type(error).__name__, message=str(error))


def error_from_message(failure: worker_pb2.Failure) -> PocketfedError:
    """The error that was raised elsewhere, of the same class if it is one of ours."""
    kind = _ERRORS.get(failure.error)
    if kind is None:
        return WorkerError(f"the worker failed: {failure.error}: {failure.message}")
    # not every class takes its message as the only argument
    error = kind.__new__(kind)
    error.args = (failure.message,)
    return error

"""A segment of a model as numpy calls on buffers allocated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.backends.base import DeviceData, Program
from client.backends.checks import require_layers
from client.backends.figures import Command, Metrics, Traffic, Usage
from client.backends.numpy.data import NumpyData
from client.backends.numpy.ops import (
    FUNCTIONS,
    LOSS_FUNCTIONS,
    OPTIMIZERS,
    Array,
    Optimizer,
    Run,
)
from client.backends.numpy.plan import Memory, Plan
from client.backends.numpy.work import command_of, single
from client.backends.recipe import Hyper, Recipe
from client.backends.state import State
from client.model.graph import Segment
from client.model.losses import Labels


class NumpyProgram(Program):
    """See ``Program``. Arrays given and returned have the device's dtype."""

    def __init__(
        self,
        segment: Segment,
        capacity: int,
        recipe: Recipe,
        dtype: np.dtype[Any],
        traffic: Traffic,
    ) -> None:
        require_layers(segment, FUNCTIONS, "numpy")
        self.segment = segment
        self.capacity = capacity
        self.recipe = recipe
        self.dtype = dtype
        self._traffic = traffic
        self._sampling = False
        self._sample_next = False
        self._commands: list[Command] | None = None
        self._commands_next: list[Command] | None = None
        self._values = np.zeros(segment.num_values, dtype)  # parameters, then buffers
        self._grads = np.zeros(segment.num_trained, dtype)
        self._held = np.zeros_like(self._grads if recipe.accumulates else self._grads[:0])
        self._between_slices = False
        self._optimizer = self._make_optimizer()
        self._memory = Memory(capacity, dtype)
        self._plans: dict[int, Plan] = {}
        self._data: NumpyData | None = None
        self._order: NDArray[np.int32] = np.empty(0, np.int32)
        self._batch = 0  # of the epoch; 0 before the first
        self._labels: Labels = np.empty(0, np.int32)
        self._run = Run(training=True, dropout_key=0, rows=self._order)
        self._metrics = self._no_metrics()
        plan = self._plan(capacity)
        self.usage = Usage(
            params_nbytes=self._values.nbytes + self._optimizer.nbytes + self._held.nbytes,
            arena_nbytes=self._memory.nbytes,
            launches=len(plan.forward) + len(plan.backward) + 3,  # gather, loss, update
        )

    def _make_optimizer(self) -> Optimizer:
        kind = OPTIMIZERS[self.recipe.optimizer]
        start = np.zeros_like(self._grads if self.recipe.proximal else self._grads[:0])
        return kind(self._values, self.segment.trained_runs, self._grads, start)

    def _no_metrics(self) -> Metrics:
        return Metrics(0.0, 0 if self.recipe.loss.has_accuracy else None, 0, 0.0)

    @property
    def nbytes(self) -> int:
        return self.usage.nbytes

    # -- a round ---------------------------------------------------------------------------
    def upload(self, params: Array) -> None:
        self._values[...] = params
        self._optimizer.begin()

    def download(self) -> Array:
        return self._values.copy()

    def put_values(self, values: Array) -> None:
        self._check_values(values)
        with self._timed("copy_s"):
            self._values[...] = values
        self._end_sample()

    def read_state(self) -> State:
        optimizer = self._optimizer
        return State(self.download(), np.stack(optimizer.state), optimizer.steps)

    def write_state(self, state: State) -> None:
        state.check(self.segment, self._optimizer.states)
        self._values[...] = state.values
        for own, slot in zip(self._optimizer.state, state.slots, strict=True):
            own[...] = slot
        self._optimizer.steps = state.updates

    # -- an epoch --------------------------------------------------------------------------
    def begin_epoch(
        self, data: DeviceData, order: NDArray[np.int32], batch: int, dropout_key: int
    ) -> None:
        if not isinstance(data, NumpyData):
            raise TypeError("the data set was loaded by another backend")
        self._check_batch(batch)
        self._check_order(order, data.num_examples)
        data.check(self.segment.model, self.recipe.loss)
        self._data, self._order, self._batch = data, order, batch
        self._run.dropout_key = dropout_key
        self._between_slices = False

    def read_metrics(self) -> Metrics:
        metrics, self._metrics = self._metrics, self._no_metrics()
        return metrics

    # -- a step ----------------------------------------------------------------------------
    def gather(self, start: int, count: int) -> None:
        self._check_gather(start, count, len(self._order), self._batch)
        assert self._data is not None
        if not self._between_slices:
            self._sampling, self._sample_next = self._sample_next, False
            self._commands, self._commands_next = self._commands_next, None
        self._between_slices = False
        began = perf_counter()
        with self._timed("copy_s"):
            rows = self._order[start : start + count]
            self._run.rows = rows
            if self.segment.is_last:
                self._labels = self._data.y[rows]
            if self.segment.is_first:
                raw = self._data.x[rows]
                factor, shift = self.segment.model.input.affine(raw.dtype)
                x = self._plan(count).x
                x = x.reshape(len(factor), -1, count)
                raw = raw.reshape(count, len(factor), -1).transpose(1, 2, 0)
                np.multiply(raw, factor[:, None, None], out=x, dtype=self.dtype)
                np.add(x, shift[:, None, None], out=x)
        if self._commands is not None:
            nbytes = raw.nbytes + x.nbytes if self.segment.is_first else 0
            self._commands.append(single("gather", "copy", nbytes, perf_counter() - began))

    def forward(self, count: int, training: bool = True) -> None:
        with self._timed("compute_s"):
            self._run.training = training
            commands = self._commands
            for function in self._plan(count).forward:
                began = perf_counter()
                function.forward(self._run)
                if commands is not None:
                    commands.append(command_of(function, "forward", count, perf_counter() - began))

    def weight(self, start: int, count: int) -> float:
        if self._data is None:
            raise RuntimeError("weight before begin_epoch")
        return self.recipe.loss.weight(self._data.y[self._order[start : start + count]])

    def loss(self, count: int, total: float | None = None) -> None:
        began = perf_counter()
        with self._timed("compute_s"):
            plan, loss = self._plan(count), self.recipe.loss
            if plan.dy is None:
                raise ValueError("the loss belongs to the last segment")
            labels = np.moveaxis(self._labels[:count], 0, -1)
            new = LOSS_FUNCTIONS[type(loss)](loss, plan.y, labels, total, plan.dy)
            self._metrics += new
        if self._commands is not None:
            nbytes = plan.y.nbytes + plan.dy.nbytes
            self._commands.append(single("loss", "compute", nbytes, perf_counter() - began))

    def backward(self, count: int) -> None:
        with self._timed("compute_s"):
            commands = self._commands
            for function, sums in self._plan(count).backward:
                began = perf_counter()
                function.backward()
                for dx, part in sums:
                    np.add(dx, part, out=dx)
                if commands is not None:
                    commands.append(command_of(function, "backward", count, perf_counter() - began))

    def accumulate(self, first: bool, last: bool) -> None:
        self._check_accumulates()
        began = perf_counter()
        with self._timed("compute_s"):
            if last:
                self._grads += self._held
            elif first:
                self._held[...] = self._grads
            else:
                self._held += self._grads
        if self._commands is not None:
            nbytes = 3 * self._grads.nbytes
            self._commands.append(single("backward", "compute", nbytes, perf_counter() - began))
        self._between_slices = not last

    def update(self, hyper: Hyper, norm: float | None = None) -> None:
        self._check_proximal(hyper)
        began = perf_counter()
        with self._timed("compute_s"):
            self._optimizer.update(hyper, norm)
        if self._commands is not None:
            # parameters and state both ways, gradients
            nbytes = (3 + 2 * self._optimizer.states) * self._grads.nbytes
            self._commands.append(single("update", "compute", nbytes, perf_counter() - began))
        self._end_sample()

    def grad_squares(self, hyper: Hyper) -> float:
        self._check_proximal(hyper)
        with self._timed("compute_s"):
            return self._optimizer.squares(hyper)

    def _end_sample(self) -> None:
        """The step that was timed, if one was, is over."""
        self._traffic.sampled_steps += self._sampling
        self._sampling, self._commands = False, None

    def sample_next_step(self, commands: list[Command] | None = None) -> None:
        self._sample_next, self._commands_next = True, commands

    @contextmanager
    def _timed(self, counter: str) -> Iterator[None]:
        """Add the enclosed work to a counter of the traffic, in a sampled step."""
        began = perf_counter()
        yield
        if self._sampling:
            value = getattr(self._traffic, counter) + perf_counter() - began
            setattr(self._traffic, counter, value)

    # -- boundaries and tests --------------------------------------------------------------
    def put_input(self, x: Array) -> None:
        self._plan(len(x)).x[...] = np.moveaxis(x, 0, -1)

    def take_output(self, count: int) -> Array:
        return _batch_first(self._plan(count).y)

    def put_output_grad(self, dy: Array) -> None:
        target = self._plan(len(dy)).dy
        if target is not None:  # nothing before it is trained
            target[...] = np.moveaxis(dy, 0, -1)

    def take_input_grad(self, count: int) -> Array:
        self._check_input_grad()
        dx = self._plan(count).dx
        assert dx is not None
        return _batch_first(dx)

    def take_grads(self) -> Array:
        return self._grads.copy()

    def add_grads(self, grads: Array, *, replace: bool = False) -> None:
        self._check_grads(grads)
        with self._timed("compute_s"):
            if replace:
                self._grads[...] = grads
            else:
                self._grads += grads

    def read_grads(self) -> Array:
        return self.segment.all_grads(self._grads)

    def poison(self) -> None:
        self._grads.fill(np.nan)
        self._memory.poison()

    def release(self) -> None:
        self._plans.clear()
        self._memory = Memory(self.capacity, self.dtype)
        self._values = self._grads = self._held = np.empty(0, self.dtype)
        self._optimizer = OPTIMIZERS[self.recipe.optimizer](self._values, (), *[self._grads] * 2)
        self._data, self._batch = None, 0

    def _plan(self, count: int) -> Plan:
        """The calls of a step for one batch size; its views are cut once."""
        self._check_count(count)
        if count not in self._plans:
            self._plans[count] = Plan(self.segment, count, self._memory, self._values, self._grads)
        return self._plans[count]


def _batch_first(x: Array) -> Array:
    """A copy, also of a single row, where a view would do: the next step overwrites ``x``."""
    return np.moveaxis(x, -1, 0).copy()

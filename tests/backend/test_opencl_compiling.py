"""Kernels compiled before their first launch, in this process and in children."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from client.backends.recipe import Hyper
from tests.backend.harness import Subject, examples, network
from tests.backend.opencl_devices import first_device, open_device

if TYPE_CHECKING:
    from client.backends.opencl.compiling import Work

MODEL = network(
    [2, 9, 9],
    {"type": "conv2d", "out_channels": 3, "kernel_size": 3},
    "batchnorm2d",
    "relu",
    {"type": "maxpool2d", "kernel_size": 2},
    "flatten",
    {"type": "linear", "out_features": 5},
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Work, Any, Any]]:
    """What is to be compiled ahead for MODEL, by a driver that compiles at the first launch."""
    first_device()
    calls: list[tuple[Work, Any, Any]] = []
    monkeypatch.setattr("client.backends.opencl.program_cache.READING_S", 0.0)
    monkeypatch.setattr("client.backends.opencl.program_cache.keeps_its_own", lambda device: True)
    monkeypatch.setattr(
        "client.backends.opencl.program.compile_ahead", lambda *call: calls.append(call)
    )
    device = open_device()
    subject = Subject(device, MODEL, 4, *examples(MODEL, 10))
    subject.epoch(Hyper(lr=0.1))
    device.close()
    return calls


def test_all_that_may_run_on_any_content_is_asked_for(asked: list[tuple[Work, Any, Any]]) -> None:
    ((work, program, _),) = asked
    names = {job.kernel.rpartition("_")[0] for job in work.jobs}
    assert {"conv_forward", "gemm", "batch_forward", "batch_backward"} <= names
    assert not names & {"max_backward", "cross_entropy", "gather", "sgd"}
    assert {job.kernel for job in work.jobs} <= set(program.kernel_names.split(";"))
    assert any(job.kernel.startswith("conv") and None in job.args for job in work.jobs)


def test_the_jobs_run(asked: list[tuple[Work, Any, Any]]) -> None:
    from client.backends.opencl.compiling import run

    ((work, program, queue),) = asked
    run(work.jobs, work.nbytes, program, queue)


@pytest.mark.slow
def test_children_take_their_share(
    asked: list[tuple[Work, Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from client.backends.opencl import compiling

    ((work, program, queue),) = asked
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(compiling, "FEW", 2)
    mine: list[str] = []
    monkeypatch.setattr(compiling, "run", lambda jobs, *rest: mine.extend(j.kernel for j in jobs))
    compiling.compile_ahead(work, program, queue)
    assert 0 < len(mine) < len(work.jobs)
    assert not caplog.records


@pytest.mark.slow
def test_a_child_that_fails_is_said(
    asked: list[tuple[Work, Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from client.backends.opencl import compiling

    ((work, program, queue),) = asked
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(compiling, "FEW", 2)
    compiling.compile_ahead(replace(work, device="opencl|none"), program, queue)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "exit code 1: no device opencl|none" in said.message


def test_what_is_known_is_not_asked_for_again(asked: list[tuple[Work, Any, Any]]) -> None:
    device = open_device()
    first = Subject(device, MODEL, 4, *examples(MODEL, 10))
    assert len(asked) == 2, "a device that was opened anew"
    second = Subject(device, MODEL, 4, *examples(MODEL, 10))
    assert len(asked) == 2
    for subject in (first, second):
        subject.release()
    device.close()

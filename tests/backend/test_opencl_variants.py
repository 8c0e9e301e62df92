"""Kernels generated for other devices than the one at hand: they must compute the same anywhere."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from client.backends.opencl.plan import plan_segment
from client.backends.opencl.tiles import Target, target_of
from client.backends.recipe import Hyper, Recipe
from tests.backend.cases import CASES, Case
from tests.backend.harness import Subject, assert_tensors_close, examples, network, numpy_device
from tests.backend.opencl_devices import first_device, open_device
from tests.backend.test_program import small_net
from tests.tolerance import assert_close

TARGETS = {
    "gpu": target_of("gpu", 1),
    "cpu4": target_of("cpu", 4),
    "cpu8": target_of("cpu", 8),
    "cpu16": target_of("cpu", 16),
    "scalar": Target("gpu", vector=1, accumulators=4, group=8, busy=64),
    "pairs": Target("cpu", vector=2, accumulators=6, group=4, busy=8),
}

FAMILIES = (
    ("linear_31_32_33", "linear_65_63_32", "linear_wide"),
    ("conv_stride_dilation", "conv_same_even", "conv_groups", "conv_four_pads"),
    ("conv_1x1_small",),
    ("conv_1x1_rest",),
    ("conv_flat", "conv_halved", "conv_halved_odd"),
    ("conv_depthwise", "depthwise_small", "depthwise_rest"),
    ("conv1d_plain", "conv1d_causal_long", "conv1d_stride_long", "conv1d_groups"),
    ("conv_batch",),
    ("conv_channels",),
    ("maxpool_overlap", "maxpool_gaps"),
    ("avgpool",),
    ("concat",),
    ("residual", "activations_residual"),
    ("activations_flat", "activations_image"),
    ("bytes_channels",),
    ("embedding_floats",),
    ("embedding_bytes",),
    ("lstm",),
    ("gru",),
)
"""Cases with strides, dilation, padding, overlapping and gapping windows, several channels; those
that are alike in what they compute stand together."""

QUICK = ("gpu",)
"""Of the CPUs' targets one is that of the CPU at hand, where the whole conformance suite runs."""


def taken(name: str) -> list[str]:
    """Names of the cases that run on a target.

    On the quick one all; on each other every second of a family, on the next target the others.
    """
    if name in QUICK:
        return [case for family in FAMILIES for case in family]
    number = list(TARGETS).index(name)
    return [
        case
        for family in FAMILIES
        for place, case in enumerate(family)
        if len(family) == 1 or (place + number) % 2 == 0
    ]


def on_target(name: str, *more: object) -> Any:
    """A test's parameters on a target."""
    marks = () if name in QUICK else pytest.mark.slow
    named = [getattr(value, "name", str(value)) for value in more]
    return pytest.param(name, *more, marks=marks, id="-".join([name, *named]))


BY_NAME = {case.name: case for case in CASES}
PAIRS = [on_target(name, BY_NAME[case]) for name in TARGETS for case in taken(name)]
EACH = [on_target(name) for name in TARGETS]


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Target:
    target = TARGETS[request.param]
    device = open_device()
    device.close()
    if device.target == target:
        pytest.skip("the target of the device at hand: the conformance suite runs on it")
    return target


def kernels(case: Case, target: Target) -> set[tuple[str, str]]:
    """(kernel, kind of variant) of all that a case launches."""
    launches = plan_segment(case.model.whole, case.batch + 3, target, case.recipe()).launches
    return {(launch.kernel, re.sub(r"\d+", "#", launch.variant)) for launch in launches}


def test_each_kernel_that_a_target_can_have_is_run_on_it() -> None:
    first_device()
    everything = taken(QUICK[0])
    for name, target in TARGETS.items():
        found = {case: kernels(BY_NAME[case], target) for case in everything}
        run = set().union(*(found[case] for case in taken(name)))
        assert set().union(*found.values()) - run == set(), name
    others = {case for name in TARGETS if name not in QUICK for case in taken(name)}
    assert others == set(everything)


@pytest.mark.parametrize(("target", "case"), PAIRS, indirect=["target"])
def test_variants_agree_with_pytorch(target: Target, case: Case) -> None:
    with np.load(case.path) as file:
        frozen = {key: file[key] for key in file.files}
    device = open_device(target=target)
    data = frozen["x"], frozen["y"], frozen["params"]
    subject = Subject(device, case.model, case.batch + 3, *data)
    subject.reset(frozen["orders"][0], case.batch)
    subject.program.poison()
    grads = subject.gradients(case.batch)
    logits = subject.program.take_output(case.batch)
    assert_close("logits", logits, frozen["logits64"], frozen["logits32"])
    assert_tensors_close(case.model, "gradient", grads, frozen["grads64"], frozen["grads32"])
    device.close()


@pytest.mark.parametrize("target", EACH, indirect=True)
def test_variants_agree_on_a_clipped_update(target: Target) -> None:
    """The norm of 33,366 parameters, in as many partial sums as each target makes."""
    hidden = {"type": "linear", "out_features": 332}
    model = network([98], hidden, "relu", {"type": "linear", "out_features": 1})
    x, y = examples(model, 5)
    results = []
    opened = open_device(target=target)
    for device in (opened, numpy_device(np.float64), numpy_device(np.float32)):
        subject = Subject(device, model, 5, x, y, recipe=Recipe(proximal=True))
        subject.program.step(0, 5, Hyper(lr=1.0))  # away from the round's start
        subject.program.step(0, 5, Hyper(lr=0.5, proximal_mu=0.3, clip_norm=0.1))
        results.append(subject.program.download())
    assert_tensors_close(model, "parameters", *results)
    opened.close()


@pytest.mark.parametrize("target", EACH, indirect=True)
def test_variants_agree_on_dropout(target: Target) -> None:
    model = small_net()
    x, y = examples(model, 15)
    results = []
    opened = open_device(target=target)
    for device in (opened, numpy_device(np.float64), numpy_device(np.float32)):
        results.append(Subject(device, model, 6, x, y).gradients(5, 6))
    assert_tensors_close(model, "gradient", *results)
    opened.close()

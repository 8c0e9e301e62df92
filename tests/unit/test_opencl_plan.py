"""What the OpenCL backend enqueues: which launches, joined how, in which variants."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernels as kernel_sources
from client.backends.device_info import DeviceInfo
from client.backends.opencl import tiles
from client.backends.opencl.launch import fitted, rounded
from client.backends.opencl.plan import SegmentPlan, gather_launches, plan_segment
from client.backends.opencl.tiles import Tile, target_of, tile
from client.backends.opencl.work import least_nbytes
from client.fields import shipped_names
from client.model import Model, Segment, build_model, load_model
from client.model.layers import Conv, Linear

CPU = target_of("cpu", 16)


def network(shape: list[int], *layers: Any) -> Model:
    mapping = {"name": "net", "input": {"shape": shape}, "layers": list(layers)}
    return build_model(mapping, "net")


def kernels(plan: SegmentPlan) -> list[str]:
    """Kernels of a training step, with what was joined to them."""
    found = []
    for launch in (*plan.forward, *plan.loss, *plan.backward):
        joined = [k.lower() for k in ("RELU", "GATE", "ACCUMULATE") if dict(launch.defines).get(k)]
        if launch.kernel == "gemm" and dict(launch.defines).get("B_TRANS") and launch.args[2] == 1:
            joined.append("relu")
        if launch.mode != "evaluation":
            found.append(" ".join([launch.kernel, *joined]))
    return found


def conv(channels: int) -> dict[str, Any]:
    return {"type": "conv2d", "out_channels": channels, "kernel_size": 3, "padding": 1}


def linear(features: int) -> dict[str, Any]:
    return {"type": "linear", "out_features": features}


@pytest.mark.parametrize(
    ("name", "launches"),
    [("mlp", 11), ("lenet5", 22), ("femnist_cnn", 18), ("resnet8", 66), ("resnet20", 162)],
)
def test_launches_of_a_step(name: str, launches: int) -> None:
    model = load_model(Path(name))
    plan = plan_segment(model.whole, 32, CPU)
    assert plan.step_launches == launches <= 4 * sum(bool(op.params) for op in model.ops) + 10
    assert not any(k.startswith(("relu", "copy")) for k in kernels(plan)), "all ReLUs are joined"


@pytest.mark.parametrize("name", shipped_names("models"))
def test_launches_of_products_carry_their_arithmetic(name: str) -> None:
    """Forward, gradient of the weights, and, but for the network's input, of the input."""
    model = load_model(Path(name))
    plan = plan_segment(model.whole, 32, CPU)
    found: dict[str, int] = {}
    for launch in (*plan.forward, *plan.backward):
        found[launch.op] = found.get(launch.op, 0) + launch.flops
    with_grad: set[int] = set()
    for op in model.ops:
        if isinstance(op.layer, Linear | Conv):
            passes = 3 if op.inputs[0] in with_grad else 2
            extra = prod(model.tensors[op.output])  # the gradient of a joined ReLU, on its own
            least = passes * op.layer.flops(model.tensors[op.inputs[0]])
            assert found[op.name] in (least, least + extra), op.name
        if op.params or with_grad.intersection(op.inputs):
            with_grad.add(op.output)


def test_relu_joins_both_neighbours_and_flatten_is_nothing() -> None:
    plan = plan_segment(network([1, 16, 16], conv(2), "relu", "flatten", linear(3)).whole, 8, CPU)
    assert [k for k in kernels(plan) if k != "sum_partials"] == [
        "conv_forward relu",
        "gemm",
        "cross_entropy",
        "gemm",  # dW and db
        "gemm gate",  # dX, zero where the ReLU was
        "conv_wgrad",
    ]


def test_relu_stands_alone_where_its_input_has_other_readers() -> None:
    """x -> conv -> [relu, identity] -> add: the convolution's output is needed as it is."""
    block = {"type": "residual", "body": ["relu", conv(2)]}
    plan = plan_segment(network([1, 16, 16], conv(2), block, "flatten", linear(3)).whole, 8, CPU)
    found = [k for k in kernels(plan) if k != "sum_partials"]
    assert found == [
        "conv_forward",
        "relu_forward",
        "conv_forward",
        "add",
        "gemm",
        "cross_entropy",
        "gemm",
        "gemm",
        "copy",  # the sum's gradient goes to the block's input ...
        "conv_wgrad",
        "conv_dgrad",
        "relu_backward accumulate",  # ... and what comes through the body is added
        "conv_wgrad",
    ]


def test_relu_after_a_sum_joins_it() -> None:
    block = {"type": "residual", "body": [conv(2)]}
    model = network([2, 4, 4], conv(2), block, "relu", "flatten", linear(3))
    assert "add relu" in kernels(plan_segment(model.whole, 8, CPU))


def test_dropout_in_place_costs_nothing_in_evaluation() -> None:
    model = network([4], linear(4), {"type": "dropout", "p": 0.5}, linear(3))
    plan = plan_segment(model.whole, 8, CPU)
    assert [(launch.kernel, launch.mode) for launch in plan.forward] == [
        ("gemm", "always"),
        ("dropout", "training"),
        ("gemm", "always"),
    ]


def test_no_gradient_where_nothing_is_trained() -> None:
    """Not for the network's input, nor for layers before the first parameters."""
    pool = {"type": "maxpool2d", "kernel_size": 2}
    model = network([1, 4, 4], pool, "relu", "flatten", linear(3))
    found = kernels(plan_segment(model.whole, 8, CPU))
    assert found == ["max_forward", "relu_forward", "gemm", "cross_entropy", "gemm"]
    later = kernels(plan_segment(Segment(model, 1, 4), 8, CPU))
    assert later == ["relu_forward", "gemm", "cross_entropy", "gemm", "gemm gate"]


def test_no_kernel_needs_an_extension() -> None:
    """What OpenCL 1.2 makes optional: extensions, and double precision."""
    for path in Path(kernel_sources.__path__[0]).glob("*.cl"):
        code = re.sub(r"//.*", "", path.read_text())
        assert re.search(r"EXTENSION|cl_khr|\b(double|half|atom_\w+)\d*\b", code) is None, path.name


def test_gather_is_one_launch() -> None:
    model = load_model(Path("mlp"))
    plan = plan_segment(model.whole, 32, CPU)
    (launch,) = gather_launches(plan, np.dtype(np.uint8))
    assert (launch.kernel, launch.busy, dict(launch.defines)["RAW"]) == ("gather", "copy", "uchar")
    later = plan_segment(Segment(model, 1, len(model.block_names)), 32, CPU)
    assert gather_launches(later, np.dtype(np.uint8))[0].kernel == "gather_rows"


@pytest.mark.parametrize("accumulators", [1, 2, 12, 16, 24])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 40), (10, 1), (31, 33), (64, 14)])
def test_tiles_fit_the_registers(rows: int, columns: int, accumulators: int) -> None:
    t = tile(rows, columns, accumulators)
    assert 1 <= t.rows <= rows
    assert 1 <= t.columns <= columns
    assert t.rows * t.columns <= accumulators


def test_tiles_leave_little_over_the_edge() -> None:
    assert tile(6, 28, 16, row_load=0.5).rows == 6
    assert tile(64, 14, 16, row_load=0.5) == Tile(8, 2)
    assert tile(32, 196, 24, row_load=1) == Tile(4, 6)


def test_variants_depend_on_shapes_and_class_only() -> None:
    model = load_model(Path("lenet5"))
    plans = [plan_segment(model.whole, 32, target_of("cpu", 16)) for _ in range(2)]
    assert plans[0].variants == plans[1].variants
    assert plans[0].variants != plan_segment(model.whole, 32, target_of("cpu", 4)).variants
    assert {op for op, _ in plans[0].variants} == {"all", "conv1", "conv2", "fc1", "fc2", "fc3"}


def test_defaults_fall_back_from_device_to_vendor_to_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (
        tiles.Shipped("device", "Mali-G7", vector=2, accumulators=8, group=32),
        tiles.Shipped("vendor", "ARM", vector=8, accumulators=6, group=16),
    )
    monkeypatch.setattr(tiles, "SHIPPED", rows)
    found = []
    for name, vendor in (("Mali-G71", "ARM"), ("Mali-T8", "ARM Ltd"), ("Iris", "Intel")):
        info = DeviceInfo("opencl", name, "gpu", vendor=vendor)
        target = tiles.shipped_target(info, 1)
        assert (target.kind, target.busy) == ("gpu", target_of("gpu", 1).busy)
        found.append((tiles.shipped_for(info), target.vector, target.group))
    assert found == [
        ("the device Mali-G7", 2, 32),
        ("the vendor ARM", 8, 16),
        ("the class gpu", target_of("gpu", 1).vector, target_of("gpu", 1).group),
    ]


def test_a_tuned_tile_takes_the_place_of_the_planned_one() -> None:
    """In its launches and in what is recorded; no other choice changes."""
    model = load_model(Path("mlp"))
    shipped = plan_segment(model.whole, 32, CPU)
    tuned = plan_segment(model.whole, 32, replace(CPU, tiles={"gemm dot 32": (2, 7)}))
    changed = [
        pair for pair in zip(shipped.variants, tuned.variants, strict=True) if len({*pair}) > 1
    ]
    assert changed == [((op, "dot 4x6"), (op, "dot 2x7")) for op in ("fc1", "fc2", "fc3")]


def test_work_groups_shrink_to_a_kernels_limit() -> None:
    assert fitted((64, 1, 1), 256) == (64, 1, 1)
    assert fitted((8, 8, 1), 16) == (4, 4, 1)
    assert fitted((64, 1), 1) == (1, 1)
    assert rounded((5, 9), (4, 8)) == (8, 16)


def test_a_step_of_a_sequence_touches_its_part_of_the_tensors() -> None:
    lstm = {"type": "lstm", "hidden_size": 32}
    plan = plan_segment(network([10, 16], lstm, "last_step", linear(3)).whole, 8, CPU)
    steps = [launch for launch in plan.forward if launch.kernel == "step_forward"]
    assert len(steps) == 10
    weights, state = 4 * 32 * 32, 8 * 32  # numbers: of one step's matrices; of a row of 8 examples
    # the gates and activations that are kept, cells, and h; of these at most twice what is needed
    assert 4 * (weights + 6 * state) <= least_nbytes(steps[5], 8, plan) <= 8 * (weights + 6 * state)
    (last,) = [launch for launch in plan.forward if launch.kernel == "last_step_forward"]
    assert least_nbytes(last, 8, plan) == 4 * (state + state)
    assert least_nbytes(last, 4, plan) == 4 * state

"""The parity gate: what a broken driver does is noticed, named and remembered."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kernels
from client import parity
from client.backends.base import Device, Program
from client.backends.numpy.device import NumpyDevice
from client.backends.recipe import DEFAULT_RECIPE, Hyper
from client.config import DevicesConfig
from client.errors import ParityError
from client.model import Model, build_model
from client.model.graph import Float32Array, Segment
from client.worker.devices import Devices
from tests import fakes
from tests.fakes import Fake, Spoil

BATCH = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def opened(fake: Fake, model: Model | None = None) -> tuple[Device, Program]:
    device = fake.open(fake.devices()[0])
    return device, device.compile((model or fakes.model()).whole, BATCH)


def compare(spoil: Spoil | None) -> None:
    device, program = opened(Fake("fake", spoil=spoil))
    parity.compare(program, device, fakes.model())


def views(model: Model, grads: Float32Array) -> dict[str, Float32Array]:
    return model.views(grads)  # type: ignore[return-value]


def test_numpy_agrees_with_itself() -> None:
    compare(None)


def test_rounding_in_another_order_is_no_fault() -> None:
    def rounding(model: Model, grads: Float32Array, count: int) -> None:
        noise = np.random.default_rng(0).uniform(-1, 1, grads.shape)
        grads += (grads * noise * 1e-5).astype(np.float32)

    compare(rounding)


def test_a_flip_that_other_examples_do_not_show_is_no_fault() -> None:
    """A gate on other examples passes; a fault is there on all of them (the tests below)."""
    seen: list[int] = []

    def once(model: Model, grads: Float32Array, count: int) -> None:
        seen.append(count)
        if len(seen) == 1:
            views(model, grads)["fc1.weight"][:, -1] = 0

    compare(once)
    assert len(seen) == 4  # two batches of the first draw, two of the second


@pytest.mark.parametrize("name", [p.name for p in fakes.model().params])
def test_zeros_in_any_one_gradient_are_refused_and_named(name: str) -> None:
    def zeros(model: Model, grads: Float32Array, count: int) -> None:
        views(model, grads)[name][...] = 0

    with pytest.raises(ParityError, match=f"gradient of {name} at a batch of {BATCH}"):
        compare(zeros)


def test_as_far_from_exact_results_as_numpy_itself_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In deep networks flips multiply: numpy's own distance from float64 says how far they lead."""
    least = {"factor": 0.97, "numpy": 1.0}

    def off(model: Model, grads: Float32Array, count: int) -> None:
        grads *= np.float32(least["factor"])

    with pytest.raises(ParityError, match=r"allowed 0\.01"):
        compare(off)
    exact = parity._reference

    def rounded(device: Device, program: Program, model: Model, draw: int) -> parity.Results:
        found = exact(device, program, model, draw)
        if isinstance(device, NumpyDevice) and device.dtype == np.float64:
            return found
        return {k: v * np.float32(least["numpy"]) for k, v in found.items()}

    monkeypatch.setattr(parity, "_reference", rounded)
    least["numpy"] = 1.01
    compare(off)
    least["factor"] = 0.8
    with pytest.raises(ParityError, match=r"allowed 0\.0[45]"):
        compare(off)


def test_a_wrong_column_of_one_matrix_is_refused() -> None:
    def column(model: Model, grads: Float32Array, count: int) -> None:
        weight = views(model, grads)["fc1.weight"]
        weight[:, -1] = weight[:, 0]

    with pytest.raises(ParityError, match=r"gradient of fc1\.weight .* shape \(8, 16\)"):
        compare(column)


def test_a_wrong_tile_is_refused() -> None:
    def tile(model: Model, grads: Float32Array, count: int) -> None:
        views(model, grads)["fc1.weight"][4:, 8:] *= 0.5

    with pytest.raises(ParityError, match=r"gradient of fc1\.weight"):
        compare(tile)


def test_a_single_number_that_is_none_is_refused() -> None:
    def nan(model: Model, grads: Float32Array, count: int) -> None:
        grads[3] = np.nan

    with pytest.raises(ParityError, match=r"differs from numpy by nan"):
        compare(nan)


def test_a_fault_of_small_batches_alone_is_refused() -> None:
    """The full batch is right; where rows are left over, the last one is that of before."""

    class StaleRow(fakes.FakeProgram):
        def gather(self, start: int, count: int) -> None:
            super().gather(start, count)
            if count < self.capacity:
                self._labels[count - 1] = (self._labels[count - 1] + 1) % 3

    fake = Fake("fake")
    device = fake.open(fake.devices()[0])
    assert isinstance(device, fakes.FakeDevice)
    program = StaleRow(fakes.model().whole, BATCH, DEFAULT_RECIPE, device, fake)
    with pytest.raises(ParityError, match=r"at a batch of 4"):
        parity.compare(program, device, fakes.model())


def test_a_wrong_update_is_refused() -> None:
    class NoMomentum(fakes.FakeProgram):
        def update(self, hyper: Hyper, norm: float | None = None) -> None:
            super().update(replace(hyper, momentum=0.0), norm)

    fake = Fake("fake")
    device = fake.open(fake.devices()[0])
    assert isinstance(device, fakes.FakeDevice)
    program = NoMomentum(fakes.model().whole, BATCH, DEFAULT_RECIPE, device, fake)
    with pytest.raises(ParityError, match="change of the parameters in two updates"):
        parity.compare(program, device, fakes.model())


def test_a_fault_of_evaluation_alone_is_refused() -> None:
    class Silent(fakes.FakeProgram):
        def forward(self, count: int, training: bool = True) -> None:
            super().forward(count, training)
            if not training:
                self._plan(count).y[...] = 0

    fake = Fake("fake")
    device = fake.open(fake.devices()[0])
    assert isinstance(device, fakes.FakeDevice)
    program = Silent(fakes.model().whole, BATCH, DEFAULT_RECIPE, device, fake)
    with pytest.raises(ParityError, match=r"logits of a batch of \d+ in evaluation"):
        parity.compare(program, device, fakes.model())


def test_the_message_names_device_driver_error_and_kernel() -> None:
    def zeros(model: Model, grads: Float32Array, count: int) -> None:
        views(model, grads)["fc2.weight"][...] = 0

    device, program = opened(Fake("fake", spoil=zeros, driver="9.1"))
    program.usage = replace(
        program.usage, variants=(("fc1.backward", "gemm 4x4"), ("fc2.backward", "gemm 8x2"))
    )
    with pytest.raises(ParityError) as e:
        parity.compare(program, device, fakes.model())
    text = str(e.value)
    assert text.startswith("fake device (")
    assert "driver 9.1" in text
    assert "differs from numpy by 1 of its norm (allowed 0.01)" in text
    assert text.endswith("kernels fc2.backward: gemm 8x2")
    assert "\n" not in text


# -- segments of a network that is cut ---------------------------------------------------------

CUTS = [(0, 2), (1, 3), (2, 4), (3, 4)]  # of flatten, fc1, relu, fc2


@pytest.mark.parametrize("blocks", CUTS)
def test_segments_of_numpy_agree_with_themselves(blocks: tuple[int, int]) -> None:
    device = fakes.numpy_device()
    program = device.compile(Segment(fakes.model(), *blocks), BATCH)
    parity.compare(program, device, fakes.model())


def broken_segment(
    broken: type[fakes.FakeProgram], blocks: tuple[int, int]
) -> tuple[Device, Program]:
    fake = Fake("fake")
    device = fake.open(fake.devices()[0])
    assert isinstance(device, fakes.FakeDevice)
    segment = Segment(fakes.model(), *blocks)
    return device, broken(segment, BATCH, DEFAULT_RECIPE, device, fake)


class LostRows(fakes.FakeProgram):
    def take_input_grad(self, count: int) -> Float32Array:
        grad = super().take_input_grad(count)
        grad[count // 2 :] = 0
        return grad


class LostSquares(fakes.FakeProgram):
    def grad_squares(self, hyper: Hyper) -> float:
        return super().grad_squares(hyper) / 2


class OwnNorm(fakes.FakeProgram):
    def update(self, hyper: Hyper, norm: float | None = None) -> None:
        super().update(hyper)


class LostInput(fakes.FakeProgram):
    def put_input(self, x: Float32Array) -> None:
        super().put_input(np.zeros_like(x))


class LostGradient(fakes.FakeProgram):
    def put_output_grad(self, dy: Float32Array) -> None:
        super().put_output_grad(dy[::-1])


@pytest.mark.parametrize(
    ("broken", "blocks", "message"),
    [
        (LostRows, (1, 3), "the blocks fc1 to .*: gradient of the input at a batch of 8"),
        (LostRows, (3, 4), "gradient of the input at a batch of 8"),
        (LostSquares, (0, 2), "squares"),
        (OwnNorm, (3, 4), "change of the parameters in two updates"),
        (LostInput, (2, 4), "logits of a batch of 8"),
        (LostInput, (1, 2), "output of a batch of 8"),
        (LostGradient, (0, 2), r"gradient of fc1\.weight"),
    ],
)
def test_a_broken_boundary_is_refused(
    broken: type[fakes.FakeProgram], blocks: tuple[int, int], message: str
) -> None:
    device, program = broken_segment(broken, blocks)
    with pytest.raises(ParityError, match=message):
        parity.compare(program, device, fakes.model())


# -- what is kept ----------------------------------------------------------------------------


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the devices that were compared."""
    done: list[str] = []
    real = parity.compare

    def counted(program: Program, device: Device, model: Model) -> None:
        done.append(device.info.name)
        real(program, device, model)

    monkeypatch.setattr(parity, "compare", counted)
    return done


def check(fake: Fake, model: Model | None = None) -> bool:
    device, program = opened(fake, model)
    return parity.check(device, program, model or fakes.model())


def test_a_device_that_is_known_runs_its_steps_before_it_is_timed(
    compared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else the first step, in which drivers load their kernels, would be a trial."""
    uploads = []
    for _ in range(2):
        fake = Fake("fake")
        fakes.register(monkeypatch, fake)
        pool = Devices(DevicesConfig(), fakes.model())
        pool.ready(fake.devices()[0], BATCH)
        uploads.append(fake.calls["upload"])
        pool.close()
    assert compared == ["fake device"]
    assert uploads[0] == uploads[1] > 0


def test_a_rehearsal_compares_nothing() -> None:
    device, program = opened(Fake("fake", spoil=lambda model, grads, batch: grads.fill(np.nan)))
    parity.rehearse(device, program, fakes.model())


def test_a_pass_is_kept_on_disk(compared: list[str], cache: Path) -> None:
    assert check(Fake("fake")) is True
    assert len(list((cache / "parity").iterdir())) == 1
    assert check(Fake("fake")) is False  # another device object: the file speaks
    assert compared == ["fake device"]


def test_a_failure_is_not_kept(compared: list[str], cache: Path) -> None:
    def nan(model: Model, grads: Float32Array, count: int) -> None:
        grads[...] = np.nan

    for _ in range(2):
        with pytest.raises(ParityError):
            check(Fake("fake", spoil=nan))
    assert len(compared) == 2
    assert not (cache / "parity").exists()


def test_another_driver_is_checked_anew(compared: list[str]) -> None:
    assert check(Fake("fake", driver="1"))
    assert check(Fake("fake", driver="2"))
    assert len(compared) == 2


def test_other_kernels_are_checked_anew(
    compared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(Fake("fake"))
    monkeypatch.setattr(kernels, "digest", lambda: "other kernels")
    assert check(Fake("fake"))
    assert len(compared) == 2


def test_another_version_is_checked_anew(
    compared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(Fake("fake"))
    monkeypatch.setattr(parity, "__version__", "9.9")
    assert check(Fake("fake"))
    assert len(compared) == 2


def test_another_model_is_checked_anew(compared: list[str]) -> None:
    layers = ["flatten", {"type": "linear", "name": "fc1", "out_features": 3}]
    other = build_model({**fakes.MODEL, "layers": layers}, "other")
    assert check(Fake("fake"))
    assert check(Fake("fake"), other)
    assert len(compared) == 2


def test_other_segments_are_checked_anew(compared: list[str]) -> None:
    device = fakes.numpy_device()
    for blocks in CUTS:
        program = device.compile(Segment(fakes.model(), *blocks), BATCH)
        assert parity.check(device, program, fakes.model())
        assert not parity.check(device, program, fakes.model())
    assert len(compared) == len(CUTS)


def test_other_variants_are_checked_anew(compared: list[str]) -> None:
    device, program = opened(Fake("fake"))
    assert parity.check(device, program, fakes.model())
    program.usage = replace(program.usage, variants=(("fc1", "gemm 8x2"),))
    assert parity.check(device, program, fakes.model())
    assert len(compared) == 2


def test_a_cache_that_cannot_be_written_is_a_warning(
    compared: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, "client.parity"):
        assert check(Fake("fake")) is True
    assert "parity is checked anew at each start" in caplog.text
    assert check(Fake("fake")) is True  # indeed
    assert len(compared) == 2


def test_a_cache_that_may_not_be_entered_is_a_warning(
    compared: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with caplog.at_level(logging.WARNING, "client.parity"):
        assert check(Fake("fake")) is True
    assert "cannot be read" in caplog.text

"""What is installed: the wheel's content, and the little that a phone needs of it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("client", "server", "kernels", "configs")

_IMPORTED = """
import json, sys
import client.worker.session
print(json.dumps(sorted(name.partition(".")[0] for name in sys.modules)))
"""


def python(code: str, *arguments: object, cwd: Path = ROOT) -> str:
    """Output of a fresh interpreter."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_imports_neither_flower_nor_a_driver_nor_an_extra() -> None:
    found = set(json.loads(python(_IMPORTED)))
    assert {"client", "numpy", "yaml"} <= found
    unwanted = {"flwr", "pyopencl", "torch", "ray", "rich", "typer", "click", "safetensors"}
    assert not found & (unwanted | {"mlxtend", "sklearn", "scipy", "pandas", "server"})


def sources(pattern: str) -> set[str]:
    return {
        str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).glob(pattern)
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy: nothing is left in the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    shutil.copytree(ROOT / "tests" / "packaging", source / "tests" / "packaging")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "-w", str(folder)]
    if importlib.util.find_spec("setuptools"):
        command.append("--no-build-isolation")  # works without a network
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("pocketfed-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_holds_all_of_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if not name.endswith("/")}
    assert len(sources("*.cl")) > 5
    assert len(sources("**/*.yaml")) > 5
    expected = sources("**/*.py") | sources("**/*.cl") | sources("**/*.yaml")
    expected |= {"client/py.typed", "server/py.typed"}
    assert expected - names == set()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    [entry] = [name for name in names if name.endswith("entry_points.txt")]
    assert "pocketfed = server.cli:main" in wheel.read(entry).decode()


_PHONE = """
import json, sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class Absent(MetaPathFinder):
    names = ("flwr", "rich", "typer", "click", "safetensors", "mlxtend", "sklearn", "pyopencl",
             "torch", "ray", "pandas", "scipy")
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
installed, work = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(installed))

import numpy as np
from client.backends.recipe import Hyper
from client.config import load_experiment
from client.model import initialise
from client.timing import RoundClock
from client.trainer import Task
from client.worker import session

assert Path(session.__file__).is_relative_to(installed), session.__file__
g = np.random.default_rng(0)
x = g.integers(0, 256, (40, 1, 28, 28), np.uint8)
np.savez(work / "phone.npz", x=x, y=np.arange(40) % 10)
(work / "phone.yaml").write_text('''
name: phone
model: lenet5
data: {source: phone.npz, partition: {nodes: 1}}
train: {lr: 0.01}
federation: {rounds: 1}
''')
s = session.Session(load_experiment(work / "phone.yaml"), work)
start = initialise(s.model, 0)
hyper = Hyper(lr=0.01)
task = Task(round=1, seed=0, partition="phone", local_epochs=1, batch=32, hyper=hyper)
clock = RoundClock()
outcome, record = s.train(task, work / "phone.npz", start, None, clock)
record.set_timing(clock.stop())
moved = float(np.abs(outcome.params - start).max())
print(json.dumps({"moved": moved, "record": json.loads(record.to_json())}))
"""


@pytest.mark.slow
def test_a_phone_trains_with_numpy_and_yaml_alone(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    installed, work = tmp_path / "installed", tmp_path / "work"
    wheel.extractall(installed)
    work.mkdir()
    found = json.loads(python(_PHONE, installed, work, cwd=work))
    record = found["record"]
    assert found["moved"] > 0
    assert (record["partition"], record["num_examples"]) == ("phone", 40)
    assert record["layout"] == "numpy"
    [event] = record["events"]
    assert event["kind"] == "fallback"
    assert event["message"].startswith("opencl is not used: ")
    assert "pip install" in event["message"]

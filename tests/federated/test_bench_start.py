"""The first step of a new process, with an empty kernel cache and with a warm one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from client.backends import get
from client.errors import DeviceError
from server.bench.start import measure_start
from tests import fakes


@pytest.mark.slow
def test_the_first_step_is_timed_in_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(fakes.MODEL))
    info = get("numpy").devices()[0]
    start = measure_start(str(tmp_path / "own.yaml"), 4, info)
    assert start.cold_s > 0
    assert start.warm_s > 0
    with pytest.raises(DeviceError, match=r"first training step failed: .*no file 'none\.yaml'"):
        measure_start("none", 4, info)

"""What all tests stand on: a machine's and a user's habits must not decide how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "gate",
    deadline=None,  # on a busy machine, one example may take any time
    derandomize=True,  # what was found once is found each time, and nothing is new on one machine
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gate")

SLOW_LIMIT_S = 1800.0
"""For a test that takes up to two minutes on an idle machine of two cores: a slow and busy one
takes many times as long, and what hangs is ended all the same."""

FOREIGN = (
    *("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH", "FLWR_HOME"),
    *("POCKETFED_BROKER", "POCKETFED_BROKER_TOKEN_FILE", "POCKETFED_PARENT"),
)
"""Variables that change what is printed, or where to."""


def pytest_configure() -> None:
    """Before any module is imported: typer looks at its variables then."""
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have a limit of their own."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard() -> Iterator[None]:
    """SIGHUP and SIGINT have their default meaning, here and in children, though the tests run
    under nohup, or in the background of a script, whose shell has them ignored."""
    usual = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def cache_is_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that earlier runs measured or compiled is used, and nothing stays behind."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POCKETFED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

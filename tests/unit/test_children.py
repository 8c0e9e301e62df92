"""Child processes: their environment, why they ended, and the signals of the process above."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from client.children import Child, environment, signals_as_interrupt

FLOWER_ENDS = """\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
Server error '501 Unsupported method ('POST')' for url 'http://127.0.0.1:1/v1/fleet/register-node'
For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/501
The SuperNode could not establish a connection to the SuperLink.

For more information, visit: <https://flower.ai/docs/305.html>
INFO:     Shutting down
INFO:     Finished server process [26569]
"""


def test_loopback_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        assert environment()[name] == "example.org,127.0.0.1,localhost"
    monkeypatch.setenv("no_proxy", "localhost")
    assert environment()["no_proxy"] == "localhost,127.0.0.1"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            FLOWER_ENDS,
            "Failed to initialize the connection to the SuperLink. Server error '501 Unsupported "
            "method ('POST')' for url 'http://127.0.0.1:1/v1/fleet/register-node' The SuperNode "
            "could not establish a connection to the SuperLink.",
        ),
        ("WARNING :   EXPERIMENTAL\nINFO :      Sent successfully\n\n", "nothing logged"),
        ("ValueError: no\nINFO:     Shutting down\n", "ValueError: no"),
    ],
)
def test_the_last_words_are_the_reason(tmp_path: Path, log: str, said: str) -> None:
    child = Child("platform", [], tmp_path, tmp_path / "log")
    child.process.wait(120)
    child.log.write_text(log)
    assert child.last_words() == said
    assert child.how_it_ended() == "in good order"


def test_a_child_that_was_killed_has_no_last_words(tmp_path: Path) -> None:
    child = Child("http.server", ["0", "--bind", "127.0.0.1"], tmp_path, tmp_path / "log")
    os.kill(child.pid, signal.SIGKILL)
    child.process.wait(120)
    assert child.how_it_ended() == "SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_are_as_ctrl_c(number: signal.Signals) -> None:
    def ended() -> None:
        with signals_as_interrupt():
            os.kill(os.getpid(), number)
            time.sleep(5)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        ended()
    assert signal.getsignal(number) is before


def test_nohup_keeps_its_meaning() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

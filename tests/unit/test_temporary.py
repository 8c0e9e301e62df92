"""Temporary folders: gone with their owner, or as the next one starts; and the lock beneath."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client.lock import HeldError, take
from client.temporary import TemporaryFolder, temporary_home

_OWNER = """
import time
from client import temporary
temporary.MAX_SOCKET_PATH = 1000  # pytest's folders have long names
folder = temporary.TemporaryFolder(room=30)
(folder.path / "empty").mkdir()
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this process and its children."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("client.temporary.MAX_SOCKET_PATH", 1000)
    return tmp_path


def owner(home: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that owns a folder below ``home``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_gone_with_its_owner(home: Path) -> None:
    with TemporaryFolder(room=30) as folder:
        (folder.path / "a" / "b").mkdir(parents=True)
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert folder.path.parent == home
    assert list(home.iterdir()) == []


def test_what_is_written_while_a_folder_is_removed_goes_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ray's processes, some of which end a moment after it has told them to."""
    folder = TemporaryFolder(room=30)
    last_words = folder.path / "logs" / "last-words"
    real = os.rmdir

    def rmdir(path: str, **how: int) -> None:
        if Path(path).name == folder.path.name and not last_words.exists():
            monkeypatch.setattr(os, "rmdir", real)
            last_words.parent.mkdir()
            last_words.touch()
        real(path, **how)

    monkeypatch.setattr(os, "rmdir", rmdir)
    folder.remove()
    assert os.rmdir is real, "nothing was written meanwhile"
    assert list(home.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_is_not(
    home: Path,
) -> None:
    for name in ("pocketfed-notes", "pocketfed-file", "other"):
        (home / name).mkdir()  # without a lock they are none of ours
    living, used = owner(home)
    killed, left = owner(home)
    try:
        killed.kill()
        killed.wait()
        assert (left / "empty").is_dir()
        with TemporaryFolder(room=30) as folder:
            assert not left.exists()
            assert used.is_dir()
            assert {p.name for p in home.iterdir()} == {
                "pocketfed-notes",
                "pocketfed-file",
                "other",
                used.name,
                folder.path.name,
            }
    finally:
        for process in (living, killed):
            process.send_signal(signal.SIGKILL)
            process.communicate()


def test_a_socket_has_a_short_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, home in (("x", "x"), ("y" * 80, "/tmp")):
        monkeypatch.setattr("tempfile.tempdir", name)
        assert temporary_home(room=30) == home


def test_a_file_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with take(path), pytest.raises(HeldError, match=f"^{os.getpid()}$"):
        take(path)
    with take(path):
        assert path.read_text() == str(os.getpid())
    with pytest.raises(OSError, match="No such file"):
        take(tmp_path / "absent" / "lock")

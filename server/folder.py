"""A run's folder: who may write it, what lies in it, where its log goes.

run.db              what happened (server/store.py)
experiment.yaml     the experiment as it was resolved: every default written out
versions.json       Python, packages, system
log.txt             what happened, for reading
initial.safetensors the parameters of --init, where they were given
checkpoints/        the last two rounds
model.safetensors   the final model
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import platform
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

import kernels
from client import __version__
from client.config import Experiment
from client.errors import ConfigError, StoreError
from client.lock import HeldError, take
from server.files import cannot_be_written, reason, write_durably

PACKAGES = (
    "flwr",
    "numpy",
    "pyopencl",
    "grpcio",
    "protobuf",
    "PyYAML",
    "safetensors",
    "pocl-binary",
)
"""Packages whose versions can change a result."""

LOGGERS = ("client", "server", "flwr")


class RunFolder:
    """Paths in a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = path / "run.db"
        self.experiment = path / "experiment.yaml"
        self.versions = path / "versions.json"
        self.log = path / "log.txt"
        self.initial = path / "initial.safetensors"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model.safetensors"

    @classmethod
    def create(cls, out: Path | None, name: str) -> RunFolder:
        """A new folder: ``out``, or ``runs/<name>-<time>``; ConfigError if it holds anything."""
        try:
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                if any(out.iterdir()):
                    raise ConfigError(
                        f"{out}: is not empty: choose another folder, "
                        "or go on with the run in it by --resume"
                    )
                return cls(out)
            stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
            number = 1
            while True:
                path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
                try:
                    path.mkdir(parents=True)
                    return cls(path)
                except FileExistsError:
                    number += 1
        except OSError as e:
            raise StoreError(f"{out or 'runs'}: cannot be made: {reason(e)}") from None

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run, from itself or its run.db; StoreError if it is none."""
        folder = cls(path.parent if path.name == "run.db" else path)
        if not folder.db.is_file():
            raise StoreError(f"{path}: no such run: give the folder of a run, as in runs/NAME-TIME")
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process writes a run; StoreError names the one that does."""
        path = self.path / "lock"
        try:
            held = take(path)
        except HeldError as e:
            raise StoreError(f"{self.path}: is being written by process {e}") from None
        except OSError as e:
            raise StoreError(f"{path}: cannot be written: {reason(e)}") from None
        with held:
            yield

    def describe(self, experiment: Experiment, versions: dict[str, str]) -> None:
        """Write what the run is, for reading and for doing it again."""
        text = yaml.safe_dump(experiment.to_dict(), sort_keys=False, allow_unicode=True)
        write_durably(self.experiment, text.encode())
        write_durably(self.versions, (json.dumps(versions, indent=2) + "\n").encode())

    def was_edited(self, recorded: dict[str, Any]) -> bool:
        """Does experiment.yaml say something else than the recorded experiment?"""
        try:
            found = yaml.safe_load(self.experiment.read_bytes())
        except FileNotFoundError:  # it is only for reading
            return False
        except (OSError, ValueError, yaml.YAMLError):
            return True
        # the record is JSON, which knows fewer types
        return bool(json.loads(json.dumps(found, default=str)) != recorded)

    @contextmanager
    def logging(self) -> Iterator[None]:
        """What this package and Flower log goes to log.txt, and not to the terminal."""
        handler = _LogFile(self.log)
        loggers = [logging.getLogger(name) for name in LOGGERS]
        before = [(log, log.handlers[:], log.level, log.propagate) for log in loggers]
        for log in loggers:
            log.handlers, log.propagate = [handler], False
            log.setLevel(logging.INFO)
        try:
            yield
        finally:
            for log, handlers, level, propagate in before:
                log.handlers, log.propagate = handlers, propagate
                log.setLevel(level)
            handler.close()


class _LogFile(logging.FileHandler):
    """Lines of time, level, logger, message. A full disk ends the run, as for all its records."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as e:
            raise StoreError(f"{path}: cannot be written: {reason(e)}") from None
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def close(self) -> None:
        # what a full disk leaves unwritten here has been told as it came
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's own name)
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            path = Path(self.baseFilename)
            resumable = RunFolder(path.parent).db.is_file()
            raise cannot_be_written(path, error, resumable) from None
        super().handleError(record)


def versions() -> dict[str, str]:
    """What a result may depend on: this package, its kernels, Python, packages, system."""
    found = {
        "pocketfed": __version__,
        "kernels": kernels.digest(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": platform.platform(),
        "machine": platform.machine(),
    }
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

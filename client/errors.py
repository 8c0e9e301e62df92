"""What can go wrong, one class per thing that a user can mend.

PocketfedError                     exit code 1
├── ConfigError                    a YAML file, key, value or option is wrong: exit code 2
│   └── ModelError                 a model description that cannot be built (shapes, layers)
├── DataError                      a data file or data set is missing, damaged or unfit: exit code 2
├── MissingExtraError              an optional package is not installed: exit code 2
├── MismatchError                  two sides differ in version, kernels, parameters: exit code 2
├── DeviceError                    a compute device failed: build, memory, lost, wrong result
│   └── ParityError                the device computes other numbers than the reference
├── WorkerError                    the device worker cannot be reached, or ends again and again
├── TrainingError                  the training itself failed (NaN, nothing to train on)
├── RoundError                     a round or the whole run failed
└── StoreError                     a run's folder, record or checkpoint cannot be read or written

Each message is one line and says what is wrong, where (file and key path), and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PocketfedError(Exception):
    """Base of all errors that are reported in one line, without a traceback."""

    exit_code = 1


class ConfigError(PocketfedError):
    """A YAML file, key, value or command-line option is wrong."""

    exit_code = 2


class ModelError(ConfigError):
    """A model description that cannot be built."""


class DataError(PocketfedError):
    """A data file or data set is missing, damaged or does not fit the model."""

    exit_code = 2


class MissingExtraError(PocketfedError):
    """An optional package is needed and not installed."""

    exit_code = 2

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed: "
            f"pip install 'pocketfed[{extra}]'"
        )


class MismatchError(PocketfedError):
    """Two sides differ in version, kernel digest or parameter manifest."""

    exit_code = 2


class DeviceError(PocketfedError):
    """A compute device failed: it cannot be opened, built for, or it was lost."""


class ParityError(DeviceError):
    """A device computes other numbers than the numpy reference."""


class WorkerError(PocketfedError):
    """The device worker cannot be reached, or no start of it survives a command."""


class TrainingError(PocketfedError):
    """The training itself failed: not a number, or nothing to train on."""


class RoundError(PocketfedError):
    """A round, and with it the run, failed."""


class StoreError(PocketfedError):
    """A run's folder, record or checkpoint cannot be read or written."""


def did_you_mean(found: str, allowed: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest of ``allowed``, or an empty string."""
    near = difflib.get_close_matches(found, list(allowed), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""

"""Programs, built from source once and kept on disk as binaries.

A file's name is a digest of source, build options, device, driver and platform; its content is a
digest of the binary and the binary, since a driver may crash on a damaged one.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import pyopencl as cl

import kernels
from client.backends.opencl.launch import OPTIONS, Define
from client.cache import write_atomically
from client.errors import DeviceError

log = logging.getLogger(__name__)

_CONVOLUTIONS = (
    "conv",
    "conv1d",
    "conv1x1",
    "conv_batch",
    "conv_channels",
    "conv_flat",
    "conv_halved",
    "depthwise",
)

HEADERS: Mapping[str, tuple[str, ...]] = {
    "dropout": ("common.h", "random.h"),
    **dict.fromkeys(_CONVOLUTIONS, ("common.h", "conv.h")),
}
"""Sources that are put before another one; ``common.h`` alone where nothing is said."""

_DIGEST_NBYTES = 16


def keeps_its_own(device: cl.Device) -> bool:
    """Whether the driver keeps what it compiled, so that a second copy would only cost time.

    PoCL does; and asked for a binary, it compiles every kernel once more, for any work-group.
    """
    return bool(device.platform.name == "Portable Computing Language")


class ProgramCache:
    """Programs of one device. ``folder``: where binaries are kept; None where the driver does.

    Nothing on disk stops a training: what is damaged or refused is built anew, a folder that
    cannot be used is said once.
    """

    def __init__(
        self, context: cl.Context, device: cl.Device, key: str, folder: Path | None
    ) -> None:
        self._context, self._device, self._key, self._folder = context, device, key, folder
        self._programs: dict[tuple[str, str], cl.Program] = {}
        self._unsaved: dict[Path, cl.Program] = {}
        self._folder_works = True

    def get(self, source: str, defines: tuple[tuple[str, Define], ...]) -> cl.Program:
        """The program of ``kernels/<source>.cl``; DeviceError with the log where it fails."""
        options = " ".join([OPTIONS, *(f"-D{name}={value}" for name, value in defines)])
        if (source, options) not in self._programs:
            text = "\n".join(
                kernels.source(name) for name in (*HEADERS.get(source, ("common.h",)), source)
            )
            self._programs[source, options] = self._load_or_build(source, text, options)
        return self._programs[source, options]

    def save(self) -> None:
        """Write what was built since the last call; to be called when kernels were created.

        Some drivers compile only then.
        """
        for path, program in self._unsaved.items():
            if not self._folder_works:
                break
            binary = program.binaries[0]
            digest = hashlib.blake2b(binary, digest_size=_DIGEST_NBYTES).digest()
            try:
                write_atomically(path, digest + binary)
            except OSError as e:
                self._say_once(f"{path.parent} cannot be written: {e}")
        self._unsaved.clear()

    def _load_or_build(self, source: str, text: str, options: str) -> cl.Program:
        path = self._path(text, options)
        binary = self._read(path) if path is not None else None
        if binary is not None:
            try:
                return _build(cl.Program(self._context, [self._device], [binary]), options)
            except cl.Error as e:
                log.warning("%s: the driver refuses it, building anew: %s", path, _line(e))
        try:
            program = _build(cl.Program(self._context, text), options)
        except cl.Error as e:
            raise DeviceError(
                f"{self._device.name}: kernels/{source}.cl does not build "
                f"with {options}: {_line(e)}"
            ) from e
        if path is not None:
            self._unsaved[path] = program
        return program

    def _path(self, text: str, options: str) -> Path | None:
        if self._folder is None:
            return None
        name = hashlib.blake2b(digest_size=_DIGEST_NBYTES)
        for part in (text, options, self._key):
            name.update(part.encode() + b"\0")
        return self._folder / f"{name.hexdigest()}.bin"

    def _read(self, path: Path) -> bytes | None:
        if not self._folder_works:
            return None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self._say_once(f"{path} cannot be read: {e}")
            return None
        digest, binary = content[:_DIGEST_NBYTES], content[_DIGEST_NBYTES:]
        if digest != hashlib.blake2b(binary, digest_size=_DIGEST_NBYTES).digest():
            log.warning("%s: the kept program is damaged, building anew", path)
            return None
        return binary

    def _say_once(self, what: str) -> None:
        self._folder_works = False
        log.warning("programs are compiled at each start: %s", what)


def _build(program: cl.Program, options: str) -> cl.Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # many drivers always say something
        return program.build(options)


def _line(error: cl.Error) -> str:
    return " ".join(str(error).split())

"""Programs, built from source once and kept on disk as binaries.

A file's name is a digest of source, build options, device, driver and platform; its content is a
digest of the binary and the binary, since a driver may crash on a damaged one.
"""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyopencl as cl

import kernels
from client.backends.opencl.joined import Joined, Variant, files_of, join
from client.backends.opencl.launch import OPTIONS, Define
from client.cache import write_atomically
from client.errors import DeviceError

log = logging.getLogger(__name__)

_DIGEST_NBYTES = 16


def keeps_its_own(device: cl.Device) -> bool:
    """Whether the driver keeps what it compiled, so that a second copy would only cost time.

    PoCL does; and asked for a binary, it compiles every kernel once more, for any work-group.
    """
    return bool(device.platform.name == "Portable Computing Language")


READING_S = 0.01
"""Of each kernel, at most, where PoCL has compiled a program before; compiling one takes 0.02 s and
more. It does not say which it was."""


@dataclass(frozen=True)
class Built:
    """A program, and where each kernel is in it."""

    program: cl.Program
    joined: Joined


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
        self._joined: dict[Variant, tuple[cl.Program, str]] = {}
        self._unsaved: dict[Path, cl.Program] = {}
        self._folder_works = True

    def build(self, variants: Iterable[Variant]) -> Built | None:
        """Build kernels that are to come in one program: see ``joined``.

        The program, where it was compiled now and by a driver that compiles its kernels only when
        they are launched. DeviceError with the log where a kernel fails.
        """
        new = [v for v in dict.fromkeys(variants) if v not in self._joined]
        return self._build_together(new) if new else None

    def kernel(self, variant: Variant) -> cl.Kernel:
        """A kernel object of its own, built now unless ``build`` did; DeviceError as there."""
        if variant in self._joined:
            program, name = self._joined[variant]
            return cl.Kernel(program, name)
        return cl.Kernel(self.get(variant.source, variant.defines), variant.kernel)

    def get(self, source: str, defines: tuple[tuple[str, Define], ...]) -> cl.Program:
        """The program of ``kernels/<source>.cl``; DeviceError with the log where it fails."""
        options = " ".join([OPTIONS, *(f"-D{name}={value}" for name, value in defines)])
        if (source, options) not in self._programs:
            text = "\n".join(map(kernels.source, files_of(source)))
            try:
                self._programs[source, options] = self._load_or_build(text, options)
            except cl.Error as e:
                raise DeviceError(
                    f"{self._device.name}: kernels/{source}.cl does not build "
                    f"with {options}: {_line(e)}"
                ) from e
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

    def _build_together(self, variants: list[Variant]) -> Built | None:
        joined = join(variants)
        began_s = time.thread_time()  # of this thread alone, whatever else the machine does
        try:
            program = self._load_or_build(joined.text, OPTIONS)
        except cl.Error as e:
            for variant in variants:  # which one is it?
                self.get(variant.source, variant.defines)
            log.warning("kernels are built one by one: together they fail: %s", _line(e))
            return None
        self._joined |= {variant: (program, name) for variant, name in joined.names.items()}
        was_kept = time.thread_time() - began_s < READING_S * len(joined.names)
        if was_kept or not keeps_its_own(self._device):
            return None
        return Built(program, joined)

    def _load_or_build(self, text: str, options: str) -> cl.Program:
        path = self._path(text, options)
        binary = self._read(path) if path is not None else None
        if binary is not None:
            try:
                return _build(cl.Program(self._context, [self._device], [binary]), options)
            except cl.Error as e:
                log.warning("%s: the driver refuses it, building anew: %s", path, _line(e))
        program = _build(cl.Program(self._context, text), options)
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

"""Parts of a stream: parameters are cut into chunks, put together again, and checked on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from client import __version__
from client.errors import MismatchError, WorkerError
from client.worker.protocol import PROTOCOL
from client.worker.protocol.worker_pb2 import (
    Answer,
    Cancel,
    Command,
    Confirmed,
    Hello,
    Part,
    Progress,
)

CHUNK_NBYTES = 1 << 20
MAX_PARAMS_NBYTES = 1 << 32

Message = Hello | Command | Answer | Progress | Cancel | Confirmed


def hello(pid: int = 0) -> Part:
    """The first part of a caller; ``pid``: of a worker."""
    return Part(hello=Hello(protocol=PROTOCOL, version=__version__, pid=pid))


def check_hello(parts: Iterator[Part], caller: str) -> Hello:
    """The hello of ``caller``; MismatchError naming both versions if it speaks another protocol."""
    first = next(parts, Part())
    if first.WhichOneof("part") != "hello":
        raise WorkerError(f"{caller}: did not begin by saying which protocol it speaks")
    theirs = first.hello
    if theirs.protocol != PROTOCOL:
        raise MismatchError(
            f"{caller} and broker differ in protocol: {caller} {theirs.protocol} "
            f"(pocketfed {theirs.version}), broker {PROTOCOL} (pocketfed {__version__}): "
            "install the same pocketfed for both"
        )
    return theirs


def with_params(message: Command | Answer, params: bytes) -> Iterator[Part]:
    """The message as a part, saying how long ``params`` is, and ``params`` in chunks."""
    message.params_nbytes = len(params)
    yield Part(command=message) if isinstance(message, Command) else Part(answer=message)
    view = memoryview(params)
    for start in range(0, len(params), CHUNK_NBYTES):
        yield Part(chunk=bytes(view[start : start + CHUNK_NBYTES]))


def messages(parts: Iterable[Part]) -> Iterator[tuple[Message, bytes]]:
    """Each message of a stream with its parameters; WorkerError if the stream breaks the rules."""
    parts = iter(parts)
    for part in parts:
        message = _message(part)
        nbytes = message.params_nbytes if isinstance(message, Command | Answer) else 0
        yield message, _params(parts, nbytes) if nbytes else b""


def _message(part: Part) -> Message:
    match part.WhichOneof("part"):
        case "hello":
            return part.hello
        case "command":
            return part.command
        case "answer":
            return part.answer
        case "progress":
            return part.progress
        case "cancel":
            return part.cancel
        case "confirmed":
            return part.confirmed
        case other:
            raise WorkerError(f"broken stream: found {other or 'an empty part'}, needs a message")


def _params(parts: Iterator[Part], nbytes: int) -> bytes:
    if nbytes > MAX_PARAMS_NBYTES:
        raise WorkerError(
            f"broken stream: {nbytes} bytes of parameters, at most {MAX_PARAMS_NBYTES} are taken"
        )
    params = bytearray()
    while len(params) < nbytes:
        part = next(parts, Part())
        if part.WhichOneof("part") != "chunk":
            raise WorkerError(f"broken stream: ends at byte {len(params)} of {nbytes}")
        if not 0 < len(part.chunk) <= CHUNK_NBYTES:
            raise WorkerError(f"broken stream: a chunk of {len(part.chunk)} bytes")
        params += part.chunk
    if len(params) > nbytes:
        raise WorkerError(f"broken stream: {len(params)} bytes of parameters, {nbytes} were said")
    return bytes(params)

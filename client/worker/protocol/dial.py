"""How callers find the broker: its address and the token of its start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc

from client.errors import WorkerError
from client.worker.protocol import TOKEN_VARIABLE


def dial(address: str) -> grpc.Channel:
    """A channel to the broker; no proxy of the environment stands between. Nothing is sent yet."""
    return grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])


def read_token(environment: Mapping[str, str]) -> str:
    """The token from the file that the environment names; WorkerError if there is none."""
    path = environment.get(TOKEN_VARIABLE)
    if not path:
        raise WorkerError(
            f"{TOKEN_VARIABLE}: is not set: it names the file with the broker's token"
        )
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise WorkerError(f"{path}: the broker's token cannot be read: {e}") from None

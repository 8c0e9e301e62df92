"""How ClientApps, the broker and the device worker talk: see worker.proto.

The modules ``worker_pb2`` and ``worker_pb2_grpc`` are generated (``make protocol``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from client.errors import WorkerError

PROTOCOL = 4
"""Raised with each change that an older side would misunderstand; both sides must have the same."""

TOKEN_KEY = "pocketfed-token"
"""Metadata of every call: the token of this start of the broker."""

ADDRESS_VARIABLE = "POCKETFED_BROKER"
"""Environment of a ClientApp: the broker's address, in gRPC's form, as unix:/run/…/broker."""

TOKEN_VARIABLE = "POCKETFED_BROKER_TOKEN_FILE"
"""Environment of a ClientApp and of the worker: the file that holds the token."""


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

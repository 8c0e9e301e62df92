"""Carries out the messages that a SuperNode receives, by the installed ClientApp.

    python -m client.runner --runtime HOST:PORT --secret FILE --node FILE --handing-over FILE

Flower's own runner unpacks the bundle of a run, puts it first on sys.path and runs what it holds,
so that whoever submits a run decides which code nodes run. This one calls the ClientApp that is
installed here, unpacks nothing, and refuses a bundle that holds anything to run. It stays for all
messages, one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from client import wire
from client.app import app
from client.children import end_with_parent
from client.errors import MismatchError, PocketfedError
from client.runtime import TaskSource, heartbeat

POLL_S = 0.2

ALLOWED = {".toml", ".yaml", ".yml", ".json", ".md"}
ALLOWED_NAMES = {"LICENSE", ".info/CONTENT"}
"""What a bundle may hold: settings and text. Flower adds a table of contents."""

log = logging.getLogger("client.runner")


def check_bundle(content: bytes) -> None:
    """MismatchError naming the first file of a bundle that is neither settings nor text."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            names = bundle.namelist()
    except zipfile.BadZipFile:
        raise MismatchError("the run's bundle is not a zip file: it is refused") from None
    for name in names:
        if name not in ALLOWED_NAMES and PurePosixPath(name).suffix not in ALLOWED:
            raise MismatchError(
                f"the run's bundle holds {name!r}: nodes run no code that comes over the network; "
                "submit the run by pocketfed serve or pocketfed bundle, which send none"
            )


class Runner:
    """See the module. ``node``: what the ClientApp finds in its context's node config.

    ``handing_over``: a file that is there while a reply is on its way to the SuperNode.
    """

    def __init__(
        self, address: str, secret: Path, node: Mapping[str, str | int], handing_over: Path
    ) -> None:
        self._address = address
        self._node = dict(node)
        self._handing_over = handing_over
        self._tasks = TaskSource(address, TaskType.CLIENT_APP, secret)

    def run(self) -> None:
        """Carry out messages for ever."""
        while True:
            token = self._tasks.acquire()
            if token is None:
                time.sleep(POLL_S)
            else:
                self._carry_out(token)

    def _carry_out(self, token: str) -> None:
        """One message; its reply goes back whatever happens."""
        client = RuntimeHttpClient.from_server_address(
            self._address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                RuntimeTokenHttpInterceptor(token),
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )
        try:
            with heartbeat(client):
                message, context, _, bundle = pull_task_input(client)
                config = context.node_config
                context.node_config = {**config, **self._node}
                reply = self._answer(message, context, bundle)
                context.node_config = config
                with contextlib.suppress(OSError):  # on a full disk the reply goes all the same
                    self._handing_over.touch()
                push_message(client, reply, context)
                self._handing_over.unlink(missing_ok=True)
                if reply.has_error():
                    push_task_output(client, context, SubStatus.FAILED, reply.error.reason or "")
                else:
                    push_task_output(client, context, SubStatus.COMPLETED, "")
        finally:
            client.close()

    def _answer(self, message: Message, context: Context, bundle: Fab) -> Message:
        number = wire.round_of(message)
        what = message.metadata.message_type
        what = what if number is None else f"round {number}: {what}"
        level = logging.DEBUG if number is None else logging.INFO
        log.log(level, "%s: started", what)
        began_s = time.monotonic()
        try:
            if not wire.own_experiment(context):  # else nothing of the bundle is looked at
                check_bundle(bundle.content)
            reply = app(message, context)
        except Exception as e:  # whatever it is, the server must learn of it
            ours = isinstance(e, PocketfedError)
            reason = str(e) if ours else f"{type(e).__name__}: {e}"
            log.error("%s: %s", what, reason, exc_info=None if ours else e)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        log.log(level, "%s: done in %.2f s", what, time.monotonic() - began_s)
        return reply


def _log_lines() -> None:
    """Plain lines to standard output, which the process that started this one passes on."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in ("client", "server"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="client.runner")
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--secret", required=True, type=Path)
    parser.add_argument("--node", required=True, type=Path, help="JSON")
    parser.add_argument("--handing-over", required=True, type=Path, help="see Runner")
    arguments = parser.parse_args()
    end_with_parent()
    _log_lines()
    node = json.loads(arguments.node.read_bytes())
    try:
        Runner(arguments.runtime, arguments.secret, node, arguments.handing_over).run()
    except KeyboardInterrupt:  # how Flower's heartbeat says it
        raise SystemExit("the SuperNode has taken its task back") from None


if __name__ == "__main__":
    main()

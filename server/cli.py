"""The command `pocketfed`: errors become one line and an exit code, never a traceback."""

from __future__ import annotations

import logging
import os
import sys

from client.children import set_up_flower
from client.errors import MissingExtraError, PocketfedError

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of the signal."""


def main() -> None:
    """Entry point of the command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    set_up_flower()
    _log_to_stderr()
    try:
        try:
            import click

            from server.commands import app
        except ModuleNotFoundError as e:
            if e.name not in ("typer", "click", "rich"):
                raise
            raise MissingExtraError(e.name, "server", "the command line") from None
        try:
            code: int = app(arguments, prog_name="pocketfed", standalone_mode=False) or 0
            if code == INTERRUPTED:  # what typer makes of Ctrl-C
                raise KeyboardInterrupt
            return code
        except click.exceptions.Abort:
            raise KeyboardInterrupt from None
        except click.exceptions.NoArgsIsHelpError as e:
            e.show()
            return e.exit_code
        except click.ClickException as e:
            ctx = getattr(e, "ctx", None)
            text = " ".join(e.format_message().split())
            remedy = f": see {ctx.command_path} --help" if ctx else ""
            print(f"pocketfed: error: {text.rstrip('.')}{remedy}", file=sys.stderr)  # noqa: T201
            return e.exit_code
        except click.exceptions.Exit as e:
            return e.exit_code
    except PocketfedError as e:
        print(f"pocketfed: error: {e}", file=sys.stderr)  # noqa: T201
        return e.exit_code
    except KeyboardInterrupt:
        print("pocketfed: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `pocketfed … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


class _Stderr(logging.Handler):
    """Writes to whatever sys.stderr is now: the live view takes it over while it runs."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"pocketfed: {record.levelname.lower()}: {record.getMessage()}", file=sys.stderr)  # noqa: T201


def _log_to_stderr() -> None:
    """Warnings of ours to stderr; Flower's own progress lines are not for our users."""
    root = logging.getLogger()
    if not any(isinstance(h, _Stderr) for h in root.handlers):
        root.addHandler(_Stderr(logging.WARNING))
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("flwr").propagate = False

"""The command `pocketfed`: errors become one line and an exit code, never a traceback."""

from __future__ import annotations

import io
import logging
import os
import sys

from client.children import set_up_flower, signals_as_interrupt
from client.errors import MissingExtraError, PocketfedError

INTERRUPTED = 130
PIPE_CLOSED = 141
"""Exit codes after Ctrl-C and after SIGPIPE: 128 and the number of the signal."""


def main() -> None:
    """Entry point of the command."""
    _open_standard_streams()
    with signals_as_interrupt():
        sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    _log_to_stderr()
    try:
        set_up_flower()
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
    except SystemExit as e:
        if not isinstance(e.__context__, BrokenPipeError):
            raise
        # the reader of our output has gone, as in `pocketfed … | head`; rich and typer end on it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as e:  # of the machine or its user's making, not ours: no room, no right
        text = " ".join((e.strerror or str(e)).split())
        where = f"{e.filename}: " if e.filename else ""
        print(f"pocketfed: error: {where}{text}", file=sys.stderr)  # noqa: T201
        return 1
    except MemoryError as e:
        text = " ".join(str(e).split())
        print(f"pocketfed: error: not enough memory{f': {text}' if text else ''}", file=sys.stderr)  # noqa: T201
        return 1


def _open_standard_streams() -> None:
    """Where a stream was closed, as in ``pocketfed … >&-``, the next file that is opened takes its
    number, and whatever a library prints would go into that file; so nothing is opened there. What
    the terminal's alphabet lacks is shown as '?'."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


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

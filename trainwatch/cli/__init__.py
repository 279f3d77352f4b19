"""The command line: one file a command, each with ``add`` (its options) and ``run``.

A mistake of the person who typed gets one sentence that says what to do, and exit status 2; what went wrong while
working gets one too, and status 1. A traceback is always a fault of TrainWatch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainwatch import __version__
from trainwatch.cli import backtest, db, demo, halt, imports, rules, serve, sync, token
from trainwatch.cli.terminal import Failure, Mistake, paint

COMMANDS: Final = (serve, sync, halt, imports, backtest, rules, token, db, demo)
"""All commands, as ``trainwatch --help`` lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The command line without the program's name; by default that of the process.

    Returns:
        The exit status: 0 when all went well, 1 when something failed, 2 for a mistake.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read has read enough, such as `head`. Nothing more may be written, not even by the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Mistake, Failure) as error:
        sys.stderr.write(f"{paint('31', 'trainwatch:', sys.stderr)} {error}\n")
        return 2 if isinstance(error, Mistake) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainwatch", description="Watches training runs and stops them before they are ruined."
    )
    parser.add_argument("--version", action="version", version=f"trainwatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument("--home", type=Path, metavar="FOLDER", help="where runs are kept (default: ~/.trainwatch)")
    for command in COMMANDS:
        command.add(commands, home)
    return parser

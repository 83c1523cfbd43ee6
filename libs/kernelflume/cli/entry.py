"""Where the installed ``kernelflume`` command begins: what ends any of its commands in order."""

from __future__ import annotations

import os
import signal
import sys

from kernelflume.runtime.service import EXIT_FAILED


def main() -> None:
    """Run the command line.

    Ctrl-C while modules are still being imported ends it without a word, and an output that cannot be
    written, such as a full disk's, with one line.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # and not ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kernelflume.cli.main import app  # noqa: PLC0415 - the import is what may be interrupted

    signal.signal(signal.SIGINT, handler)
    try:
        app()
    except BrokenPipeError:
        _end_output()
    except OSError as error:
        _end_output()
        sys.stderr.write(f"kernelflume: {error.strerror or error}\n")
        raise SystemExit(EXIT_FAILED) from None


def _end_output() -> None:
    """Let nothing be written any more, so that the interpreter does not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()

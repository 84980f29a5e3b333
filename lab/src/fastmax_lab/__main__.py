"""The command `fastmax-lab`, also as `python -m fastmax_lab`: signals first, then the command line."""

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Ctrl-C and SIGTERM unwind the stack, so that half-made files and locks are removed. An import that Ctrl-C interrupts
    may raise another error than KeyboardInterrupt; the exit code is 130 all the same.
    """
    interrupts = []

    def interrupt(*_: object) -> NoReturn:
        interrupts.append(signal.SIGINT)
        raise KeyboardInterrupt

    def terminate(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has it ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        from fastmax_lab import cli

        return cli.main(arguments)
    except Exception:
        if not interrupts:
            raise
    except KeyboardInterrupt:
        pass
    return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())

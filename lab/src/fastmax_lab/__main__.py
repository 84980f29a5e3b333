"""The command `fastmax`, also as `python -m fastmax`: quiet from its first line on, whatever comes."""

import sys

from fastmax_lab.commands.interrupts import leave_at_once


def main() -> int:
    """Runs what the command line says; returns the exit code."""
    leave_at_once()
    from fastmax_lab.commands.defects import keep_traceback

    sys.excepthook = keep_traceback
    from fastmax_lab import cli  # takes a moment, in which Ctrl-C is quiet already

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())

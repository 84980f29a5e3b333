"""What nobody foresaw: one line for the user, the traceback in a file for whoever mends it."""

import sys
import traceback
from tempfile import NamedTemporaryFile
from types import TracebackType


def keep_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`."""
    text = "".join(traceback.format_exception(kind, error, trace))
    what = " ".join(f"{kind.__name__}: {error}".split())
    try:
        with NamedTemporaryFile("w", prefix="fastmax-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(f"{' '.join(sys.argv)}\n{text}")
    except OSError:  # no room even for that: better here than nowhere
        print(text, file=sys.stderr)
        return
    print(f"fastmax: a defect: {what} (please report it with {file.name})", file=sys.stderr)

"""Run the examples whose output docs/examples.md shows, and record what they print.

python -m tools.example_outputs            # writes lab/results/examples.jsonl
"""

import subprocess
import sys
from pathlib import Path

from fastmax_lab.measurements import Recorder

ROOT = Path(__file__).parent.parent
OUT = ROOT / "lab" / "results" / "examples.jsonl"
SHOWN = (("long_document.py", "--compare"), ("streaming.py",))


def main() -> None:
    OUT.unlink(missing_ok=True)
    record = Recorder("examples", OUT)
    for name, *arguments in SHOWN:
        command = [sys.executable, str(ROOT / "examples" / name), *arguments]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        record.add(name, {"arguments": arguments}, {"printed": printed.splitlines()})


if __name__ == "__main__":
    main()

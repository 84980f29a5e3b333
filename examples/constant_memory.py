"""Generation with constant memory: measure it against a cache of keys and values, and draw it.

It is a benchmark of the lab, so in a clone: pip install '.[hf]' ./lab

python examples/constant_memory.py --out lab/results/bench/generate.jsonl --picture lab/results/generate.png
python examples/constant_memory.py --draw lab/results/bench/generate.jsonl --picture lab/results/generate.png
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="add the measurements to this file, a line of JSON each")
    parser.add_argument("--draw", metavar="FILE", type=Path, help="draw these measurements instead of taking new ones")
    parser.add_argument("--picture", help="where the picture goes, PNG or SVG")
    parser.add_argument("--quick", action="store_true", help="contexts up to 4,096 tokens only")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if find_spec("fastmax_lab") is None:
        sys.exit("this example needs the lab, whose benchmark it draws: pip install ./lab")
    from fastmax_lab.bench.generate import run
    from fastmax_lab.measurements import Recorder, read
    from fastmax_lab.report.generate import draw, summary

    if options.draw is None:
        record = Recorder("bench generate", options.out)
        run(record, options.quick)
        measured = record.made
    else:
        measured = read(options.draw)
    print(summary(measured))
    if options.picture:
        draw(measured, options.picture)


if __name__ == "__main__":
    main()

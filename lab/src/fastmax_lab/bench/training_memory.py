"""Peak memory of a training step of the Long Range Arena, in a separate process with a cell as JSON."""

import json
import subprocess
import sys

from fastmax_lab.bench.memory import current_peak, reset_peak


def peak(task: str, batch: int, attention: str, attention_dropout: float) -> dict[str, int]:
    """Return the bytes of the process with the model, before its first step at full length, and at that step's peak."""
    call = json.dumps({"task": task, "batch": batch, "attention": attention, "attention_dropout": attention_dropout})
    command = [sys.executable, "-m", "fastmax_lab.bench.training_memory", call]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory of {call} failed:\n{done.stderr}")
    result: dict[str, int] = json.loads(done.stdout)
    return result


def _run(*, task: str, batch: int, attention: str, attention_dropout: float) -> dict[str, int]:
    from fastmax_lab.bench.lra import LayerCell, training_step

    cell = LayerCell(task, batch, attention_dropout)
    training_step(cell, attention, 64)()  # libraries load and pools grow at the first call
    step = training_step(cell, attention)
    before = reset_peak()
    step()
    return {"before": before, "peak": current_peak()}


if __name__ == "__main__":
    print(json.dumps(_run(**json.loads(sys.argv[1]))))

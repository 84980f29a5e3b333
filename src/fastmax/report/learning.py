"""Tables of `fastmax reproduce`: what language and recall learn, with spread over seeds."""

from statistics import mean, stdev
from typing import Any

from fastmax.report.table import table


def language(results: list[dict[str, Any]]) -> str:
    """Validation loss of each attention at its best learning rate (of seed 0), and the gap to softmax, seed by seed."""
    by_name: dict[str, dict[float, dict[int, dict[str, Any]]]] = {}
    for result in results:
        run = result["run"]
        by_name.setdefault(run["attention"], {}).setdefault(run["lr"], {})[run["seed"]] = result
    best = {name: min(rates, key=lambda lr: rates[lr][0]["val_loss"]) for name, rates in by_name.items()}
    softmax = by_name.get("softmax", {}).get(best.get("softmax", 0.0), {})
    rows = []
    for name, rates in by_name.items():
        chosen = rates[best[name]]
        losses = [chosen[seed]["val_loss"] for seed in sorted(chosen)]
        gaps = [chosen[s]["val_loss"] - softmax[s]["val_loss"] for s in sorted(chosen) if s in softmax]
        others = ", ".join(f"{lr:g}: {rates[lr][0]['val_loss']:.3f}" for lr in sorted(rates))
        rows.append([name, f"{best[name]:g}", _spread(losses), _spread(gaps, sign=True), str(len(losses)), others])
    header = ["attention", "best lr", "nats per character", "gap to softmax", "seeds", "seed 0 by lr"]
    return table(header, rows)


def reaches(results: list[dict[str, Any]]) -> str:
    """After how many tokens a key has faded to 1 / e when training ends, by layer and head."""
    rows = []
    for result in results:
        run = result["run"]
        if result["reach"] is not None and run["seed"] == 0:
            layers = "; ".join(" ".join(f"{reach:g}" for reach in layer) for layer in result["reach"])
            rows.append([run["attention"], f"{run['lr']:g}", f"{run['memory'][0]:g} to {run['memory'][1]:g}", layers])
    return table(["attention", "lr", "memory at the start, 2^m", "reach in tokens, layer; layer"], rows)


def recall(results: list[dict[str, Any]]) -> str:
    """Accuracy on examples that were not trained on."""
    rows = []
    for result in results:
        run = result["run"]
        gated = run["attention"].endswith("gated")
        memory = f", m = {run['memory'][0]:g} to {run['memory'][1]:g}" if gated else ""
        what = "1 pair" if run["pairs"] == 1 else f"{run['pairs']} pairs"
        what += f", {run['filler']} tokens of filler" if run["filler"] else ""
        reach = (
            "" if result["reach"] is None else "; ".join(" ".join(f"{x:g}" for x in layer) for layer in result["reach"])
        )
        rows.append(
            [
                f"{run['attention']}{memory}",
                what,
                str(run["seed"]),
                f"{100 * result['accuracy']:.1f} %",
                str(result["steps_done"]),
                reach,
            ]
        )
    return table(["attention", "task", "seed", "accuracy", "steps", "reach in tokens"], rows)


def _spread(values: list[float], *, sign: bool = False) -> str:
    if not values:
        return "-"
    middle = f"{mean(values):+.3f}" if sign else f"{mean(values):.3f}"
    return middle if len(values) == 1 else f"{middle} ± {stdev(values):.3f}"

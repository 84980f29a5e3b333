"""The experiments, in the order in which they are run and reported."""

from fastmax_lab.experiments import (
    dropout,
    exactness,
    far_grid,
    language,
    lra,
    lra_clock,
    lra_layers,
    lra_pace,
    lra_settings,
    lra_small,
    lra_speed,
    maps,
    order_one,
    recall_grid,
    recipes_language,
    scaling,
)
from fastmax_lab.experiments.items import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.NAME: one
    for one in (
        exactness,
        scaling,
        maps,
        dropout,
        language,
        order_one,
        recall_grid,
        far_grid,
        recipes_language,
        lra_speed,
        lra_layers,
        lra_pace,
        lra,
        lra_clock,
        lra_settings,
        lra_small,
    )
}

"""Examples made from a seed by the task's published recipe: ListOps expressions and Pathfinder images."""

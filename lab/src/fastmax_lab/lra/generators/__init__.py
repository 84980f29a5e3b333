"""Examples made from a seed where a task's own recipe is known: ListOps expressions and Pathfinder images."""

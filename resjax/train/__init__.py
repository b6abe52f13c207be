"""Training: state, step, loop, checkpoints, evaluation, and the record of a run."""

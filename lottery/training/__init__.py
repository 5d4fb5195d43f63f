"""Train one network under masks: the compiled loop, its evaluation, its checkpoints."""

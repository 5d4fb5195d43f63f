"""An experiment from its file to its last round: `run`, `sweep`, `branch` and `connect`."""

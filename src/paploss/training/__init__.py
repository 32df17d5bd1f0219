"""Training a detector with any loss: configuration, loop, checkpoints."""

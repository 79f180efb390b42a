"""Running a planned step on a model: inputs, K/V tensors, attention, runner."""

"""Running a planned step on a model: inputs, KV tensors, runner."""

"""Running steps on CUDA: launched without waiting, decoding in captured graphs."""

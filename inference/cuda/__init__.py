"""Models on CUDA: kernels, the operators and attention made of them, and steps launched without waiting, in graphs."""

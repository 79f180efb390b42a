"""Functions on tensors, in C for processors and in Triton for GPUs. They import nothing else of ours."""

"""The engine's kernels for GPUs, one concern a file. They import torch and triton only.

With TRITON_INTERPRET=1 in the environment before the first import they run on tensors of the CPU, slowly: tests use it.
Offsets into K/V and other large tensors are 64 bits wide.
"""

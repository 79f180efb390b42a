"""Which environment variables worker and fetch processes get: none of the database or our secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from django.conf import settings

_RUNNING = (
    *("PATH", "HOME", "USER", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHON*"),
    *("SLUICE_HEARTBEAT", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "ONEDNN_*", "DNNL_*", "MALLOC_*"),
    *("TORCH_*", "PYTORCH_*", "TRITON_*", "CUDA_*", "NVIDIA_*", "NCCL_*", "TOKENIZERS_*", "HF_HOME"),
)
# The model hub's token is for fetching only; a worker runs models that are already here.
_FETCHING = ("HF_*", "HUGGING*", "http*_proxy", "HTTP*_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_*", "*_CA_BUNDLE")


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that a worker process gets, with those that it needs besides."""
    # An OpenMP thread that lost its core for a moment must not stall the others; see docs/decisions.
    defaults = {"GOMP_SPINCOUNT": "1000", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    defaults["TRITON_CACHE_DIR"] = str(settings.SLUICE_HOME / "cache" / "triton")  # compiled once for all starts
    ours = {"SLUICE_HOME": str(settings.SLUICE_HOME), "SLUICE_KERNEL_LEVEL": settings.SLUICE_KERNEL_LEVEL}
    return {**defaults, **_kept(environment, _RUNNING), **ours}


def fetch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that a process gets which fetches models, those for reaching a hub
    included.
    """
    return _kept(environment, _RUNNING + _FETCHING)


def _kept(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }

"""The spec of a node's worker, from the catalogue."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from base import clock
from base.home import as_meant, named_runtime_directory, runtime_directory, runtime_place, worker_endpoint
from billing.rating import CardPrices
from billing.selectors.prices import prices_at
from fleet import adapter_files as files
from fleet.nodes import key_file
from inference.config import EngineConfig, SettingError, WorkerConfig
from routing.models import Adapter, Deployment, Node

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


_OPTIONS = {f.name for f in fields(EngineConfig)} - {"deployment", "source", "model", "rates", "adapters"}


class WorkerSpecError(ValueError):
    """A worker's spec can't be made; the message names deployment and option, or the setting."""


def worker_spec(node: str, *, listen: str = "", keys: str = "") -> WorkerConfig:
    """Return what the worker of `node` has to run now, maybe no engine; raise `WorkerSpecError`.

    A deployment whose options can't be understood is among the `refused` and keeps no other from being served.
    A node with an address listens at its port on every interface, or at `listen`, with the key file at `keys` or at its
    usual place.
    """
    return worker_spec_and_missing(node, listen=listen, keys=keys)[0]


def worker_spec_and_missing(
    node: str, *, listen: str = "", keys: str = ""
) -> tuple[WorkerConfig, dict[str, Exception]]:
    """Return `worker_spec`, and by id of the adapters whose tensors this machine has not: what the storage raised,
    which is FileNotFoundError for those that it has lost. They are served once this is asked again and it gives them.
    """
    secret = hashlib.blake2b(
        b"prefix-cache", key=settings.SLUICE_CACHE_SECRET.encode()[:64], digest_size=32
    ).hexdigest()
    rows = Deployment.objects.filter(
        is_active=True,
        model__is_active=True,
        backend=Deployment.Backend.WORKER,
        replicas__node__name=node,
        replicas__node__is_active=True,
    ).select_related("model")
    prices = prices_at(clock.now())
    adapters, missing = _adapters({row.model_id for row in rows})
    engines: list[EngineConfig] = []
    refused: dict[str, str] = {}
    # Chat models first: a new user's first request waits for one.
    for row in sorted(rows, key=lambda row: "chat" not in row.model.kinds):
        try:
            engines.append(replace(_priced(row, prices), adapters=adapters.get(row.model_id, {})))
        except WorkerSpecError as error:
            refused[str(row.id)] = str(error)
    address = node_address(node)
    if address:
        endpoint, keys = listen or f"tcp://*:{address.rpartition(':')[2]}", keys or str(key_file(node))
    else:
        endpoint, keys = worker_endpoint(node), ""
    try:
        config = WorkerConfig(
            endpoint=endpoint,
            keys=keys,
            record=str(_record(node)),
            secret=secret,
            step_seconds=settings.SLUICE_STEP_SECONDS,
            kv_share=settings.SLUICE_KV_SHARE,
            engines=tuple(engines),
            refused=refused,
        )
    except ValueError as error:
        raise WorkerSpecError(str(error)) from error
    return config, missing


def _adapters(bases: set[UUID]) -> tuple[dict[UUID, dict[str, str]], dict[str, Exception]]:
    """Return the folders on this machine of the adapters of these models, by model and id, none of a tenant that isn't
    active; and what the storage raised for those that are missing, by id. Those of an archived project go on: nobody is
    led to them, and a node's role may read no projects.

    None keeps another from being served: one whose tensors were lost has a folder that is nowhere, which its worker
    refuses, and one that the storage doesn't give just now is left out until it does.
    """
    found: dict[UUID, dict[str, str]] = {}
    missing: dict[str, Exception] = {}
    served = Adapter.objects.filter(base__in=bases, model__is_active=True).exclude(model__tenant__is_active=False)
    adapters = list(served) if bases else []
    for adapter in adapters:
        try:
            folder = files.folder_of(adapter)
        except FileNotFoundError as error:
            missing[str(adapter.id)] = error
            folder = files.lost_folder_of(adapter)
        except Exception as error:  # noqa: BLE001 - a storage raises what it likes
            missing[str(adapter.id)] = error
            continue
        found.setdefault(adapter.base_id, {})[str(adapter.id)] = str(folder)
    files.forget_folders()
    return found, missing


def node_address(node: str) -> str:
    """Return where gateways reach the worker of `node` over the network; empty for one on this machine."""
    return Node.objects.filter(name=node).values_list("address", flat=True).first() or ""


def fingerprint(spec: WorkerConfig) -> str:
    """Return a digest that changes when the worker must be restarted; changes of its models it applies while
    running.
    """
    return hashlib.sha256(repr(replace(spec, engines=(), refused={})).encode()).hexdigest()


def save_spec(spec: WorkerConfig, node: str) -> Path:
    """Write the file that the worker of `node` reads and applies while running, and return its path."""
    path = spec_file(node)
    spec.save(path)
    return path


def spec_file(node: str) -> Path:
    """Return the file that the worker of `node` reads."""
    path: Path = settings.SLUICE_HOME / f"worker-{node}.json"
    return path


def is_worker_running(node: str) -> bool:
    """Return whether a worker of `node` runs on this home: a process listens at its socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(runtime_place() / f"{node}.sock"))  # a question makes no folder
        except OSError:
            return False
    return True


def clear_socket(node: str) -> None:
    """Remove the socket that a killed worker of `node` left, and this home's folder of sockets when it is empty.

    While a worker of `node` runs, nothing happens: it holds its record's lock.
    """
    lock = os.open(f"{_record(node)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(worker_endpoint(node).removeprefix("ipc://")).unlink(missing_ok=True)
        if not named_runtime_directory() and not any(runtime_directory().iterdir()):
            runtime_directory().rmdir()
    except BlockingIOError:
        return
    finally:
        os.close(lock)


def _record(node: str) -> Path:
    home: Path = settings.SLUICE_HOME
    return home / f"worker-{node}.record"


def _priced(row: Deployment, prices: Mapping[str, CardPrices]) -> EngineConfig:
    """The deployment with its card's rates, whose ratios count the service that each tenant gets of it."""
    card = prices.get(row.model.rate_card)
    return engine_config(row) if card is None else replace(engine_config(row), rates=dict(card.rates_for(0)))


def engine_config(row: Deployment) -> EngineConfig:
    """Return a deployment as its worker runs it; raise `WorkerSpecError` naming the option that is wrong."""
    try:
        source, options = as_meant(row.source), with_cache(row.options, as_meant)
        return checked_engine(source, options, deployment=str(row.id), model=row.model.name)
    except WorkerSpecError as error:
        raise WorkerSpecError(f"deployment {row.name}: {error}") from error


def with_cache(options: Any, named: Callable[[str], str]) -> Any:
    """Return a deployment's options in which their folder of downloads, if they have one, is `named` otherwise."""
    given = options.get("options") if isinstance(options, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(given.get("cache"), str):
        return options
    return {**options, "options": {**given, "cache": named(given["cache"])}}


def checked_engine(source: str, options: Any, *, deployment: str = "", model: str = "") -> EngineConfig:
    """Return `source` with `options` as a worker runs it; raise `WorkerSpecError` naming the option that is wrong."""
    if not isinstance(options, Mapping):
        raise WorkerSpecError('options are one object, such as {"dtype": "float32"}')
    if unknown := set(options) - _OPTIONS:
        raise WorkerSpecError(f"there is no option {min(unknown)!r}; known are {', '.join(sorted(_OPTIONS))}")
    try:
        return EngineConfig(deployment=deployment, source=source, model=model, **options)
    except SettingError as error:
        raise WorkerSpecError(error.message) from error

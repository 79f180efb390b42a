"""Loading the model of a deployment's config."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.config import ON_CPU, ON_GPU, EngineConfig, StepSizes
from inference.core.step import Row, StepPlan
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel, Runner
from inference.execution.checks import lacks_memory
from inference.types import Kind, SamplingParams

if TYPE_CHECKING:
    from inference.architectures.decoder import Decoder
    from inference.architectures.quantised import Quantised
    from inference.architectures.transformers import TransformersModel
    from inference.execution.attention.base import Attention
    from inference.execution.backend import CausalBackend
    from inference.execution.operators import Operators
    from inference.sampling.passes import Passes

KV_SHARE = 0.3  # of the memory that is free once the weights are loaded
FIRST_STEP = 2  # tokens of the step that a model is tried with
UNSTATED_CONTEXT = 2048  # when neither the model nor the deployment has one


def load_model(
    config: EngineConfig, *, threads: int = 0, kv_share: float = KV_SHARE, tell: Callable[[str], None] = lambda _: None
) -> LoadedModel:
    """Load what `config` names and return it ready to serve; raise ModelRefusedError with the reason when it can't be.

    `threads` > 0 sets torch's thread count for this process. `kv_share` bounds the K/V of a model whose `kv_tokens` is
    0, as a part of the free memory. Options of `config`: `cache` is the folder of downloads, converted files and proofs
    (default: `$SLUICE_HOME/cache`); `tier` is one of TIERS (`inference.config`); `overlap` plans and commits steps of
    the CPU beside the one that runs (default: no, since its cores are busy; on CUDA always). `tell` is called with a
    line before each operation that takes long.
    """
    if config.architecture == "fake":
        from inference.architectures.fake import load_fake_model

        return load_fake_model(config)
    import torch

    if threads > 0:
        torch.set_num_threads(threads)
    from transformers.utils import logging

    from inference.architectures.stored_config import is_encoder
    from inference.sources.resolve import resolve

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # problems are refused with their reason
    folder = resolve(config.source, cache_folder(config), tell)
    with torch.inference_mode():
        if config.architecture == "encoder" or (config.architecture == "auto" and is_encoder(folder)):
            return _load_encoder(config, folder)
        if "pooling" in config.options or "matryoshka" in config.options:
            raise ModelRefusedError(
                f"{folder}: to make embeddings with a model that generates, set architecture=encoder"
            )
        return _load_causal(config, folder, kv_share, tell)


def cache_folder(config: EngineConfig) -> Path:
    """Return the folder of this deployment's downloads, converted files and proofs."""
    named = config.options.get("cache")
    return Path(named) if named else Path(os.environ.get("SLUICE_HOME", "var")) / "cache"


def kernel_folder() -> Path:
    """Return the folder of the kernels that were built for this machine."""
    return Path(os.environ.get("SLUICE_HOME", "var")) / "cache" / "kernels"


def _load_causal(config: EngineConfig, folder: Path, kv_share: float, tell: Callable[[str], None]) -> LoadedModel:
    import torch

    from inference.architectures.stored_config import eos_ids, read_quantised, stored_dtype
    from inference.architectures.tiers import check_kv_dtype, choose
    from inference.execution.processor import compute_device, compute_dtype

    model_config, quantised = read_quantised(folder)
    device = compute_device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread: kernels are launched on its current device
    dtype, dtype_text = compute_dtype(config.dtype, stored_dtype(model_config), device)
    kernels, tier = kernel_folder(), str(config.options.get("tier", "auto"))
    operators = choose(dtype, kernels, tier=tier, quantization=config.quantization, device=device, tell=tell)
    check_kv_dtype(config.kv_dtype, operators)
    details = {"folder": str(folder), "dtype": dtype_text, "device": str(device)}
    positions = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    limit = int(positions or config.max_context or UNSTATED_CONTEXT)
    how: dict[str, Any] = {
        "dtype": dtype,
        "operators": operators,
        "proving": choose(torch.float32, kernels, tier=tier, device=device),
        "block_size": config.block_size,
        "proofs": cache_folder(config) / "proofs",
    }
    model, made = _proved_model(config, model_config, folder, quantised, how)
    details |= made
    details["proof"] = model.proof.text
    limit = min(limit, model.proof.max_context or limit)
    if config.max_context:
        limit = min(limit, config.max_context)
    if adapter_bytes := _adapter_bytes(model, config):
        details["adapters"] = f"up to {config.most_adapters} in memory, {adapter_bytes / 1e6:.0f} MB"
    sizes = config.sizes(ON_CPU if device.type == "cpu" else ON_GPU)
    if device.type == "cpu":
        runner, attention, graphs = _on_cpu(model, config, sizes, limit, kv_share, passes=operators.passes())
    else:
        runner, attention, graphs, sizes = _on_gpu(model, config, sizes, limit, adapter_bytes)
    cache = attention.cache
    kv_tokens = (cache.blocks - 1) * cache.block_size
    details["kv"] = f"{kv_tokens} tokens{_in_eight_bits(config)}, up to {cache.nbytes / 1e6:.0f} MB"
    details["context"] = f"{min(limit, kv_tokens)} tokens of the model's {positions or limit}"
    details |= {
        "tier": operators.tier,
        "quantization": _quantized(operators, model, quantised),
        "attention": attention.name,
        "exact": _exactness(model.exact, attention),
    }
    details |= _stated(graphs=graphs, slower=operators.reason)
    _run_once(runner, model.vocab_size, folder)
    return LoadedModel(
        runner=runner,
        kinds=frozenset({Kind.CHAT}),
        max_context=limit,
        max_input=limit - 1,
        vocab_size=model.vocab_size,
        eos_ids=eos_ids(model_config, folder),
        kv_blocks=cache.blocks,
        block_size=config.block_size,
        vector_width=0,
        tokenizer_folder=folder,
        details=details,
        adapters=model.adapters,
        adapter_bytes=adapter_bytes,
        sizes=sizes,
    )


def _proved_model(
    config: EngineConfig, model_config: Any, folder: Path, quantised: Quantised | None, how: dict[str, Any]
) -> tuple[Decoder | TransformersModel, dict[str, str]]:
    """Return the folder's model and what is told of it: our own decoder where it computes such a config, else
    transformers'; `how` are the arguments that both load with.
    """
    from inference.architectures import families
    from inference.architectures.decoder import Decoder
    from inference.architectures.proof import UnservableError
    from inference.architectures.quantised import CURE
    from inference.architectures.transformers import TransformersModel

    details: dict[str, str] = {}
    why_not = families.unsupported(model_config)
    if config.architecture != "transformers" and why_not is None:
        try:
            model = Decoder.load(model_config, folder, **how, wanted=config.max_context or 0, quantised=quantised)
        except (UnservableError, ValueError) as error:  # the latter: a shape that the operators don't take
            why_not = str(error)
            details["own decoder"] = f"not taken: {error}"
        else:
            return model, {"architecture": f"own decoder ({model_config.model_type})"}
    if config.architecture == "decoder" and why_not is not None:
        raise ModelRefusedError(f"the own decoder can't run {folder.name}: {why_not}")
    if quantised is not None:
        reason = why_not or "architecture is transformers"
        raise ModelRefusedError(f"{folder}: {quantised.text} is read by the own decoder alone, and {reason}: {CURE}")
    details["architecture"] = f"transformers ({model_config.model_type})"
    return TransformersModel.load(model_config, folder, **how), details


def _stated(**details: str) -> dict[str, str]:
    return {name: text for name, text in details.items() if text}


def _adapter_bytes(model: CausalBackend, config: EngineConfig) -> int:
    """Return how much memory its adapters may take together."""
    typical = 0 if model.adapters is None else model.adapters.typical_bytes
    return typical and (config.adapter_bytes or config.most_adapters * typical)


def _on_cpu(
    model: CausalBackend, config: EngineConfig, sizes: StepSizes, limit: int, kv_share: float, *, passes: Passes
) -> tuple[Runner, Attention, str]:
    """Return the runner, its attention over a cache of the right size, and "" (no graphs)."""
    import torch

    from inference.execution.attention.c import unsupported
    from inference.execution.memory import make_cache
    from inference.execution.runner import TorchRunner

    is_int8 = config.kv_dtype == "int8"
    cache = make_cache(
        replace(model.spec, dtype=torch.int8) if is_int8 else model.spec,
        tokens=config.kv_tokens,
        max_tokens=limit * sizes.rows,
        block_size=config.block_size,
        share=kv_share,
    )
    if is_int8 and (reason := unsupported(cache)):
        raise ModelRefusedError(f"kv_dtype int8 needs the C kernels: {reason}")
    attention = model.attention(cache, max_rows=sizes.rows, max_blocks=-(-limit // config.block_size))
    tokens = max(sizes.tokens, FIRST_STEP)
    overlaps = bool(config.options.get("overlap", False))
    runner = TorchRunner(causal=(model, attention), limit=limit, max_tokens=tokens, overlaps=overlaps, passes=passes)
    return runner, attention, ""


def _on_gpu(
    model: CausalBackend, config: EngineConfig, wanted: StepSizes, limit: int, reserve: int
) -> tuple[Runner, Attention, str, StepSizes]:
    """Return the runner, its attention over a cache of what is free beside `reserve` bytes, how decoding runs, and the
    sizes of steps: those `wanted`, with fewer tokens where they don't fit and the deployment states none.
    """
    from inference.cuda.build import Sizes, build
    from inference.cuda.device import Cuda, NoRoomError

    device = Cuda(model.device)
    while True:
        sizes = Sizes(
            limit=limit,
            rows=wanted.rows,
            tokens=max(wanted.tokens, FIRST_STEP),
            block_size=config.block_size,
            kv_tokens=config.kv_tokens,
            kv_dtype=config.kv_dtype,
            reserve=reserve,
        )
        try:
            built = build(model, device, sizes)
        except NoRoomError as error:
            refusal = ModelRefusedError(str(error))
        except Exception as error:
            if not lacks_memory(error):
                raise
            refusal = ModelRefusedError(f"a step of {sizes.tokens} tokens doesn't fit on {model.device}: {error}")
        else:
            return built.runner, built.attention, built.graphs, wanted
        if config.max_step_tokens or wanted.tokens <= ON_CPU.tokens:
            raise refusal
        # Only here: what failed is kept by its traceback as long as its error is handled.
        device.release()
        wanted = wanted._replace(tokens=wanted.tokens // 2)


def _in_eight_bits(config: EngineConfig) -> str:
    return "" if config.kv_dtype == "auto" else f" in {config.kv_dtype}"


def _quantized(operators: Operators, model: CausalBackend, stored: Quantised | None) -> str:
    """Say which scheme the weights have, of a foreign model how many of them, and what a quantised checkpoint has."""
    name, share = operators.quantization, getattr(model, "quantized", 1.0)
    if stored is not None and stored.is_kept(operators.kept):
        rest = f", the rest in {name}" if name else ""
        return f"{stored.text}, computed as the checkpoint stores it{rest}"
    text = f"{name}, {share:.0%} of the weights" if name and share < 0.99 else name or "none"
    return text if stored is None else f"{text}, after {stored.text} of the checkpoint is multiplied out"


def _exactness(exact: bool, attention: Attention) -> str:
    """Say whether an answer depends on what else is in its batch."""
    if exact and attention.exact:
        return "to the bit: the same answer alone, in any batch, in chunks and from cache"
    source = "the model's own operators" if attention.exact else f"attention by {attention.name}"
    return f"not promised: {source} may round differently in another batch"


def _run_once(runner: Runner, vocabulary: int, folder: Path) -> None:
    """Run one step with the first and the last token; raise ModelRefusedError if it fails.

    It fails where weights and config don't agree, and it initialises what a first step initialises.
    """
    ids = (0,) * (FIRST_STEP - 1) + (vocabulary - 1,)
    row = Row(0, "load", ids, 0, (1,), True, 0, SamplingParams(temperature=0.0), 0)
    try:
        runner.launch(StepPlan(0, (row,))).wait()
    except Exception as error:  # whatever a model raises, none of it may end the worker
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelRefusedError(f"{folder}: the model fails in its first step: {reason}") from error


def _load_encoder(config: EngineConfig, folder: Path) -> LoadedModel:
    from inference.architectures.classifier import FixedClassifier, OpenClassifier, has_label_head
    from inference.architectures.encoder import Encoder
    from inference.architectures.scorer import PairModel, Scorer, labels_of
    from inference.architectures.stored_config import read_config, stored_dtype
    from inference.execution.processor import compute_device, compute_dtype
    from inference.execution.runner import TorchRunner

    for name, neutral in (("quantization", ""), ("kv_dtype", "auto"), ("speculation", 0)):
        if getattr(config, name) != neutral:
            raise ModelRefusedError(f"{name} is for models that generate, and this one doesn't")
    model_config = read_config(folder)
    device = compute_device(config.device)
    dtype, dtype_text = compute_dtype(config.dtype, stored_dtype(model_config), device)
    details = {"folder": str(folder), "dtype": dtype_text, "device": str(device)}
    encoder: Encoder | Scorer | None = None
    classifier: FixedClassifier | OpenClassifier | None = None
    kind = Kind.CLASSIFICATION
    if has_label_head(folder):
        classifier = OpenClassifier.load(folder, dtype, device)
        details["architecture"] = f"encoder with a head for labels ({model_config.model_type})"
    elif (labels := labels_of(folder)) > 1:
        classifier = FixedClassifier(PairModel.load(folder, dtype, device))
        details["architecture"] = f"classifier of {labels} labels ({model_config.model_type})"
    elif labels == 1:
        encoder, kind = Scorer.load(folder, dtype, device), Kind.SCORE
        details |= {"architecture": f"cross-encoder ({model_config.model_type})", "activation": encoder.activation}
    else:
        encoder, kind = Encoder.load(folder, dtype, device, config.options), Kind.EMBEDDING
        details |= {"architecture": f"encoder ({model_config.model_type})", "pooling": encoder.pooling_text}
    model = encoder or classifier
    assert model is not None
    limit = min(model.max_input, config.max_context or model.max_input)
    return LoadedModel(
        runner=TorchRunner(encoder=encoder, classifier=classifier, limit=limit),
        kinds=frozenset({kind}),
        max_context=limit,
        max_input=limit,
        vocab_size=model.vocab_size,
        eos_ids=frozenset(),
        kv_blocks=0,
        block_size=config.block_size,
        vector_width=0 if encoder is None else encoder.width,
        nests_vectors=isinstance(encoder, Encoder) and encoder.nests,
        tokenizer_folder=folder,
        details=details,
        labels=None if classifier is None else classifier.labels,
        sizes=ON_CPU if device.type == "cpu" else ON_GPU,
    )

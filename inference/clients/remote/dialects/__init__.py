"""The dialects by name."""

from __future__ import annotations

from collections.abc import Mapping

from inference.clients.remote.dialects.base import Dialect
from inference.clients.remote.dialects.llamacpp import LlamaCpp
from inference.clients.remote.dialects.sglang import SGLang
from inference.clients.remote.dialects.tgi import TGI
from inference.clients.remote.dialects.trtllm import TensorRTLLM
from inference.clients.remote.dialects.vllm import VLLM

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (VLLM(), SGLang(), TGI(), TensorRTLLM(), LlamaCpp(), Dialect())
}

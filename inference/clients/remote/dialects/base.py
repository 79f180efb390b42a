"""Differences between remote engines: the fields that a server takes, its usage, its counts and its probe."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from inference.clients.remote import faults
from inference.clients.remote.faults import AskError
from inference.clients.remote.messages import api_messages, api_tools, prompt_texts
from inference.clients.remote.tokens import Count, estimated, number
from inference.clients.remote.usage import Report
from inference.errors import EngineError, InvalidRequestError
from inference.tools import ToolMode
from inference.types import Asked, GenerationRequest, Guidance, GuidanceKind, SamplingParams, Tokens
from inference.validation import check_guidance

Ask = Callable[..., Coroutine[Any, Any, Any]]
"""`await ask(path)` gets JSON from the endpoint, `await ask(path, body)` posts it; both return the answer's JSON."""

_GUIDED = {
    GuidanceKind.JSON_SCHEMA: "a JSON Schema",
    GuidanceKind.JSON_OBJECT: "JSON",
    GuidanceKind.REGEX: "a regular expression",
    GuidanceKind.CHOICE: "choices",
    GuidanceKind.LARK: "a grammar in Lark",
}
# The words that all versions know of a server that takes an effort. That there is to be none, the template is told.
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_MOST_COUNTED = 16  # inputs of one embedding request that are counted one by one


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a server states: tokens of prompt and output together, of the prompt, and stop sequences; None where
    the server states none.
    """

    context: int | None = None
    prompt: int | None = None
    stops: int | None = None


class Dialect:
    """A server that has OpenAI's endpoints and nothing else; the base of those that have more.

    `isolates_prefixes` says that tenants don't share a prefix cache, `counts_always` that each event of a stream has
    the usage so far, `tokenizes` how exactly a prompt can be counted before it runs (for operators).
    """

    name: ClassVar[str] = "generic"
    probe: ClassVar[str] = "/v1/models"
    extras: ClassVar[frozenset[str]] = frozenset({"logit_bias"})  # sampling fields that not all servers take
    repetition: ClassVar[str] = "repetition_penalty"  # what the server calls it
    no_top_k: ClassVar[int] = 0  # the `top_k` that is none
    isolates_prefixes: ClassVar[bool] = False
    isolation: ClassVar[str] = "shared between tenants"
    counts_always: ClassVar[bool] = False
    tokenizes: ClassVar[str] = "estimated from its length"
    guides: ClassVar[frozenset[GuidanceKind]] = frozenset({GuidanceKind.JSON_SCHEMA, GuidanceKind.JSON_OBJECT})
    lists_models: ClassVar[bool] = False  # a model that isn't at /v1/models isn't served
    guides_prompts: ClassVar[bool] = False  # answers to prompts without messages, too
    scores: ClassVar[bool] = False  # pairs of texts, at /v1/score
    takes_reasoning: ClassVar[bool] = False  # earlier messages may have `reasoning_content`
    takes_values: ClassVar[bool] = False  # for the chat template, as `chat_template_kwargs`
    takes_effort: ClassVar[bool] = False  # of reasoning, in a word
    continuing: ClassVar[Mapping[str, bool] | None] = None  # fields that ask to go on with the last message

    # -- what is sent -----------------------------------------------------------------------------------------------

    def check(self, sampling: SamplingParams) -> None:
        """Raise `InvalidRequestError` for a sampling field that this server doesn't know."""
        wanted = {
            "top_k": sampling.top_k > 0,
            "min_p": sampling.min_p > 0,
            "stop_token_ids": bool(sampling.stop_token_ids),
            "ignore_eos": sampling.ignore_eos,
            "min_tokens": sampling.min_tokens > 0,
            "repetition_penalty": sampling.repetition_penalty != 1,
            "logit_bias": bool(sampling.logit_bias),
            "allowed_token_ids": bool(sampling.allowed_token_ids),
            "best_of": sampling.answers > sampling.n,
            "logprobs": sampling.logprobs is not None,
            "prompt_logprobs": sampling.prompt_logprobs is not None,
            sampling.thinking_param: sampling.demands_thought,
        }
        for name, is_wanted in wanted.items():
            if is_wanted and name not in self.extras:
                message = f"'{name}' is not supported by the engine of this model."
                raise InvalidRequestError(message, code="unsupported_parameter", param=name)
        if (guidance := sampling.guidance) is not None:
            check_guidance(guidance)
            what = _GUIDED[guidance.kind] if guidance.kind not in self.guides else None
            if what is None and guidance.whitespace is not None:
                what = "white space of your choice"
            if what is not None:
                message = f"'{guidance.param}': the engine of this model can't hold answers to {what}."
                raise InvalidRequestError(message, code="guidance_unsupported", param=guidance.param)
            self.guidance(guidance)

    def open_wishes(self, sampling: SamplingParams) -> tuple[str, ...]:
        """Return the fields of a request's wishes that this server can't be told."""
        if sampling.thinking_asked is not Asked.WISH:
            return ()
        is_told = self.takes_values if sampling.thinking_tokens == 0 else self.takes_effort and bool(sampling.effort)
        return () if is_told else (sampling.thinking_param,)

    def check_prompt(self, request: GenerationRequest) -> None:
        """Raise `InvalidRequestError` for what this server doesn't do with a raw prompt, for values of the chat
        template that it doesn't take, and for a message to go on with where it can't.
        """
        if request.sampling.echo and not isinstance(request.prompt, str):
            message = "'echo' is not supported by the engine of this model for prompts of token ids."
            raise InvalidRequestError(message, code="unsupported_parameter", param="echo")
        if not self.takes_values:
            for name, value in request.template_values:
                if name != "enable_thinking" or value is not False:  # whose thinking nobody asks for needs no word
                    at = f"chat_template_kwargs.{name}"
                    message = f"'{at}' is not supported by the engine of this model."
                    raise InvalidRequestError(message, code="unsupported_parameter", param=at)
        if request.prompt is not None and request.sampling.logprobs is not None:  # which have another shape there
            message = "'logprobs' is not supported by the engine of this model for prompts without messages."
            raise InvalidRequestError(message, code="unsupported_parameter", param="logprobs")
        if request.continues and self.continuing is None:
            message = f"'{request.continues}': the engine of this model goes on with no message."
            raise InvalidRequestError(message, code="unsupported_parameter", param=request.continues)
        guidance = request.sampling.guidance
        if request.prompt is not None and guidance is not None and not self.guides_prompts:
            message = f"'{guidance.param}': the engine of this model guides answers to messages only."
            raise InvalidRequestError(message, code="guidance_unsupported", param=guidance.param)

    def guidance(self, guidance: Guidance) -> dict[str, Any]:
        """Return the fields of a chat's body that hold its answer to `guidance`, of a kind that the server `guides`.

        Raise `InvalidRequestError` for a schema that is no JSON.
        """
        if guidance.kind is GuidanceKind.JSON_OBJECT:
            return {"response_format": {"type": "json_object"}}
        named = {"name": "answer", "schema": schema_of(guidance), "strict": guidance.strict}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def chat(self, request: GenerationRequest, model: str, max_tokens: int, salt: str) -> dict[str, Any]:
        """Return the body of a streamed completion, of a chat or of a raw prompt; `salt` keeps the tenant's prefixes
        apart, "" shares them.
        """
        return {
            "model": model,
            **self.prompt(request),
            **self.tools(request),
            **self.template(request),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.sampling(request.sampling),
        }

    def sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        """Return the fields of sampling that the client set."""
        left_open = ("temperature", "top_p", *sorted(self.extras & {"top_k", "min_p"}))
        body: dict[str, Any] = {name: getattr(sampling, name) for name in left_open if name not in sampling.unset}
        if body.get("top_k") == 0:
            body["top_k"] = self.no_top_k
        if sampling.seed is not None:
            body["seed"] = self.seed(sampling.seed)
        lists = ("stop", "stop_token_ids")
        body |= {name: list(listed) for name in lists if (listed := getattr(sampling, name))}
        plain = ("ignore_eos", "presence_penalty", "frequency_penalty", "min_tokens")
        body |= {name: value for name in plain if (value := getattr(sampling, name))}
        if sampling.repetition_penalty != 1:
            body[self.repetition] = sampling.repetition_penalty
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        if sampling.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": sampling.logprobs}
        if self.takes_effort and sampling.effort in _EFFORTS:
            body["reasoning_effort"] = _EFFORTS[sampling.effort]
        if sampling.guidance is not None:
            body |= self.guidance(sampling.guidance)
        return body

    def prompt(self, request: GenerationRequest) -> dict[str, Any]:
        """Return the field that has what is asked."""
        if request.prompt is None:
            return {"messages": self.messages(request)}
        return {"prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt)}

    def template(self, request: GenerationRequest) -> dict[str, Any]:
        """Return the fields that say how messages become a prompt: the values of the model's template, which are the
        client's and that no thought is wanted, and whether the last message is gone on with.
        """
        continuing = self.continuing if request.continues else None
        values: dict[str, Any] = dict(request.template_values) if self.takes_values else {}
        if self.takes_values and request.sampling.thinking_tokens == 0:
            values["enable_thinking"] = False
        return ({"chat_template_kwargs": values} if values else {}) | dict(continuing or {})

    def tools(self, request: GenerationRequest) -> dict[str, Any]:
        """Return the fields that say which functions may be called, and whether."""
        tools = request.tools
        if tools is None:
            return {}
        functions = tools.functions if tools.mode is ToolMode.NONE else tools.callable
        body: dict[str, Any] = {"tools": api_tools(functions), "tool_choice": str(tools.mode)}
        if tools.mode is ToolMode.REQUIRED and len(functions) == 1:
            body["tool_choice"] = {"type": "function", "function": {"name": functions[0].name}}
        return body if tools.parallel else body | {"parallel_tool_calls": False}

    def embedding(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        """Return the body of an embedding request."""
        inputs = [item if isinstance(item, str) else list(item) for item in request.inputs]
        return {"model": model, "input": inputs, "encoding_format": "float"}

    def score(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        """Return the body of a score request, for a server that `scores`."""
        queries = request.queries
        return {
            "model": model,
            "text_1": queries[0] if len(queries) == 1 else list(queries),
            "text_2": list(request.inputs),
        }

    def messages(self, request: GenerationRequest, *, with_images: bool = True) -> list[dict[str, Any]]:
        """Return the messages of a chat as the API has them."""
        return api_messages(request.messages, with_images=with_images, with_reasoning=self.takes_reasoning)

    def seed(self, seed: int) -> int:
        """Return 64 bits as the signed number that most servers take."""
        return seed if seed < 1 << 63 else seed - (1 << 64)

    # -- what is answered -------------------------------------------------------------------------------------------

    def report(self, usage: Any, timings: Any) -> Report:
        """Return what the usage of an answer says, None for what it doesn't."""
        usage = usage if isinstance(usage, dict) else {}
        prompt_details = usage.get("prompt_tokens_details")
        details = usage.get("completion_tokens_details")
        return Report(
            prompt=number(usage.get("prompt_tokens")),
            cached=number(prompt_details.get("cached_tokens")) if isinstance(prompt_details, dict) else None,
            completion=number(usage.get("completion_tokens")),
            reasoning=number(details.get("reasoning_tokens")) if isinstance(details, dict) else None,
        )

    def refusal(self, error: Any, kind: Any) -> EngineError:
        """Return what an `error` means that a stream says instead of an answer, after a status of 200; `kind` is what
        some say beside it.
        """
        return faults.refusal_in(error) or faults.failed()

    # -- what is asked beside the requests --------------------------------------------------------------------------

    async def count_chat(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Return how many tokens the prompt of a chat has."""
        return estimated(prompt_texts(request), template=True)

    async def count_prompt(self, ask: Ask, prompt: str | tuple[int, ...], model: str) -> Count:
        """Return how many tokens a raw prompt has."""
        if not isinstance(prompt, str):
            return Count(len(prompt), len(prompt))
        count = await self.count_text(ask, prompt, model)
        return estimated([prompt], template=False) if count is None else Count(count, count)

    async def count_text(self, ask: Ask, text: str, model: str) -> int | None:
        """Return how many tokens `text` has as an input of its own, None where the server can't say."""
        return None

    async def tokens(
        self, ask: Ask, request: GenerationRequest, model: str, *, special: bool, with_texts: bool
    ) -> Tokens | None:
        """Return the tokens of a raw prompt or a chat, None where the server doesn't say."""
        return None

    async def text(self, ask: Ask, ids: tuple[int, ...], model: str) -> str | None:
        """Return the text of token ids, None where the server doesn't say."""
        return None

    async def count_inputs(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Return how many tokens the inputs of an embedding request, or the pairs of one for scores, have together."""
        if request.queries:
            texts = [str(item) for item in request.inputs]
            return estimated([*texts, *request.queries * (len(texts) // len(request.queries))], template=False)
        texts = [item for item in request.inputs if isinstance(item, str)]
        known = sum(len(item) for item in request.inputs if not isinstance(item, str))
        if len(texts) <= _MOST_COUNTED:
            counts = await asyncio.gather(*(self.count_text(ask, text, model) for text in texts))
            if None not in counts:
                total = known + sum(filter(None, counts))
                return Count(total, total)
        return estimated(texts, template=False).plus(known)

    async def limits(self, ask: Ask, model: str) -> Limits:
        """Return what the server serves `model` with.

        Raise `ModelMissingError` when the server lists its models and this one is missing.
        """
        listed = await ask("/v1/models")
        entries = listed.get("data") if isinstance(listed, dict) else None
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("id") == model:
                return Limits(number(entry.get("max_model_len")))
        if not self.lists_models:
            return Limits()
        raise ModelMissingError(f"the server doesn't list the model {model!r} at /v1/models")

    async def too_old(self, ask: Ask) -> str:
        """Return why this version of the server can't keep tenants' prefixes apart, or nothing."""
        return ""


class ModelMissingError(Exception):
    """The server doesn't serve the deployment's model."""


class SaltingDialect(Dialect):
    """A server that roots its prefix cache in the request's ``cache_salt``, from version `salted_since` on."""

    extras = frozenset(
        {"top_k", "min_p", "stop_token_ids", "ignore_eos", "min_tokens", "repetition_penalty", "logit_bias", "logprobs"}
    )
    isolates_prefixes = True
    isolation = "each tenant's own (cache_salt)"
    counts_always = True
    lists_models = True
    salted_since: ClassVar[tuple[int, ...]] = ()
    version_path: ClassVar[str] = "/version"

    def chat(self, request: GenerationRequest, model: str, max_tokens: int, salt: str) -> dict[str, Any]:
        """Return the body with usage in every event, and the salt."""
        body = super().chat(request, model, max_tokens, salt)
        body["stream_options"]["continuous_usage_stats"] = True
        if salt:
            body["cache_salt"] = salt
        return body

    async def too_old(self, ask: Ask) -> str:
        """Compare the server's version with `salted_since`; one that can't be read counts as new.

        Raise `AskError` where nothing answers.
        """
        try:
            answer = await ask(self.version_path)
        except AskError as error:
            if not error.status:
                raise
            return ""
        version = str(answer.get("version", "")) if isinstance(answer, dict) else ""
        numbers = [part for part in version.split("+")[0].split(".")[:3] if part.isdecimal()]
        if len(numbers) < 3 or "dev" in version or tuple(map(int, numbers)) >= self.salted_since:
            return ""
        since = ".".join(map(str, self.salted_since))
        return f"cache_salt is unknown to version {version} (since {since}): upgrade it, or set shared_prefixes"


def schema_of(guidance: Guidance) -> Any:
    """Return the JSON Schema of `guidance`; raise `InvalidRequestError` when it is no JSON."""
    try:
        return msgspec.json.decode(guidance.source)
    except (msgspec.MsgspecError, RecursionError) as error:
        message = f"'{guidance.param}': the schema can't be read: {error}"
        raise InvalidRequestError(message, code="guidance_invalid", param=guidance.param) from error


def alternatives(choices: Iterable[str]) -> str:
    """Return the regular expression of exactly one of `choices`."""
    return "|".join(re.sub(r"[\\.^$*+?()\[\]{}|/]", r"\\\g<0>", choice) for choice in choices)


def salt_of(domain: str, key: str) -> str:
    """Return the salt of a cache domain, which nobody can guess who doesn't know `key`."""
    return hashlib.blake2b(domain.encode(), key=bytes.fromhex(key)[:64], digest_size=16).hexdigest()

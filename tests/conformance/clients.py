"""The clients that are tried: in which environment, by which program, as which package."""

from __future__ import annotations

import re
from dataclasses import dataclass


def slug(name: str) -> str:
    """A client's name as one word of a command line: ``Anthropic Node`` is ``anthropic-node``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("'", ""))


@dataclass(frozen=True)
class Client:
    """A client: `environment` is a file of constraints/, or ``node``."""

    name: str
    environment: str
    program: str
    package: str


CLIENTS = (
    Client("OpenAI Python", "sdk", "openai_python.py", "openai"),
    Client("OpenAI Node", "node", "openai_node.mjs", "openai"),
    Client("Vercel AI SDK", "node", "ai_sdk.mjs", "ai"),
    Client("Anthropic Python", "sdk", "anthropic_python.py", "anthropic"),
    Client("Anthropic Node", "node", "anthropic_node.mjs", "@anthropic-ai/sdk"),
    Client("LangChain Python", "agents", "langchain_python.py", "langchain-openai"),
    Client("LangChain JS", "node", "langchain_node.mjs", "@langchain/openai"),
    Client("LlamaIndex", "llamaindex", "llamaindex_python.py", "llama-index-core"),
    Client("LiteLLM", "litellm", "litellm_python.py", "litellm"),
    Client("OpenAI Agents Python", "agents", "agents_python.py", "openai-agents"),
    Client("OpenAI Agents JS", "node", "agents_node.mjs", "@openai/agents"),
    Client("instructor", "agents", "instructor_python.py", "instructor"),
    Client("pydantic-ai", "agents", "pydantic_ai_python.py", "pydantic-ai-slim"),
    Client("llm", "agents", "llm_python.py", "llm"),
    Client("Haystack", "frameworks", "haystack_python.py", "haystack-ai"),
    Client("smolagents", "frameworks", "smolagents_python.py", "smolagents"),
    Client("Mirascope", "frameworks", "mirascope_python.py", "mirascope"),
    Client("Outlines", "frameworks", "outlines_python.py", "outlines"),
    Client("Strands Agents", "frameworks", "strands_python.py", "strands-agents"),
    Client("Agno", "frameworks", "agno_python.py", "agno"),
    Client("AutoGen", "frameworks", "autogen_python.py", "autogen-agentchat"),
    Client("aiperf", "aiperf", "aiperf_python.py", "aiperf"),
    Client("guidellm", "guidellm", "guidellm_python.py", "guidellm"),
    Client("OpenAI's OpenAPI document", "schemathesis", "openai_document.py", "jsonschema"),
    Client("schemathesis", "schemathesis", "schemathesis_python.py", "schemathesis"),
)

"""Outlines, as a client of OpenAI's API, and of vLLM's with its fields for structured output."""

from __future__ import annotations

import json
import re
from typing import Literal

import outlines
from lines import BASE_URL, KEY, check, line, run
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

client = OpenAI(api_key=KEY, base_url=BASE_URL, max_retries=0)
smol = outlines.from_vllm(client, "smollm2-135m-instruct")


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Literal["Oslo", "Bergen"]
    people: Literal[7, 8]


@line("OpenAI: an answer")
def answer():
    check(outlines.from_openai(client, "talks")("Where is Oslo?"), "Oslo lies by the sea.")


@line("OpenAI: an answer, streamed")
def streamed():
    check("".join(outlines.from_openai(client, "talks").stream("Where is Oslo?")), "Oslo lies by the sea.")


@line("OpenAI: a class of pydantic")
def parsed():
    text = outlines.from_openai(client, "writes-json")("Oslo", City)
    check(City.model_validate_json(text), City(name="Oslo", people=7))


@line("vLLM: SmolLM2, a class of pydantic")
def schema():
    City.model_validate(json.loads(smol("Oslo", City, max_tokens=60)))


@line("vLLM: SmolLM2, a choice")
def choice():
    assert smol("Oslo or Bergen?", Literal["Oslo", "Bergen"], max_tokens=20) in {"Oslo", "Bergen"}


@line("vLLM: SmolLM2, a regular expression")
def regex():
    text = smol("How many?", outlines.types.Regex("[0-9]{3}"), max_tokens=20)
    assert re.fullmatch("[0-9]{3}", text), text


@line("vLLM: SmolLM2, a grammar")
def grammar():
    assert smol("Yes or no?", outlines.types.CFG('start: "yes" | "no"'), max_tokens=20) in {"yes", "no"}


if __name__ == "__main__":
    run()

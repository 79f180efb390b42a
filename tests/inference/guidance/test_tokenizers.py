"""A grammar is of texts, whatever a tokenizer makes of them: byte level, or pieces with bytes to fall back to."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers

from inference.guidance.grammars import Grammars
from inference.text.tokenizer import FolderTokenizer
from inference.types import Guidance, GuidanceKind
from tests.inference.text.folders import save_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "counts": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "counts"],
    "additionalProperties": False,
}
WORDS = "[a-zé]{2,6}( [a-zé]{1,4}){2}"
Check = Callable[[str], object]


def pieces() -> RustTokenizer:
    """Return one as Llama 2 and Mistral have it: spaces are part of words, and characters may be bytes."""
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>"])}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for character in '▁abcdefghijklmnopqrstuvwxyz{}[]":,0123456789-':
        vocabulary[character] = len(vocabulary)
    merges = [("▁", "{"), ("▁", '"'), ('"', ":"), ("a", "b"), ("▁", "a"), ("▁a", "b"), ("}", "]"), ('"', ",")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    made = RustTokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<s>", "</s>"])
    return made


def walk(grammars: Grammars, guidance: Guidance, decode: Callable[[list[int]], str], end: int) -> list[str]:
    """Return the texts of random walks that ended by themselves."""
    grammar, texts = grammars.compiled(guidance), []
    for seed in range(60):
        chance, matcher, tokens = random.Random(seed), grammar.begin(), []
        while len(tokens) < 120:
            mask = int.from_bytes(matcher.mask(), "little")
            token = chance.choice([place for place in range(mask.bit_length()) if mask >> place & 1])
            if token == end:
                texts.append(decode(tokens))
                break
            tokens.append(token)
            matcher.accept(token)
    return texts


@pytest.mark.parametrize(
    ("guidance", "check"),
    [
        (Guidance(GuidanceKind.REGEX, WORDS), lambda text: re.fullmatch(WORDS, text)),
        (Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(SCHEMA)), lambda text: len(json.loads(text)["name"]) <= 8),
    ],
    ids=["regex", "schema"],
)
@pytest.mark.parametrize("form", ["byte level", "pieces"])
def test_what_is_permitted_decodes_to_what_was_asked_for(
    form: str, guidance: Guidance, check: Check, tmp_path: Path
) -> None:
    if form == "pieces":
        made = pieces()
        grammars = Grammars(made.to_str, vocabulary=made.get_vocab_size(), ends=frozenset({2}))
        texts = walk(grammars, guidance, made.decode, 2)
    else:
        size = save_tokenizer(tmp_path)
        tokenizer = FolderTokenizer(tmp_path)
        grammars = Grammars(tokenizer.serialized, vocabulary=size, ends=tokenizer.end_ids)
        [end] = tokenizer.end_ids
        texts = walk(grammars, guidance, tokenizer.decode, end)
    assert len(texts) > 30
    for text in texts:
        assert check(text), text

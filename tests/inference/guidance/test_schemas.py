"""Whatever ends by itself under a random schema validates against it, whatever the model's taste."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from inference.errors import InvalidRequestError
from inference.guidance.grammars import Grammars
from inference.text.byte_tokenizer import END_OF_TURN, VOCABULARY, ByteTokenizer
from inference.types import Guidance, GuidanceKind
from tests.inference.guidance.schemas import random_object

MOST = 600  # tokens of an answer


@pytest.fixture(scope="module")
def made() -> Grammars:
    return Grammars(ByteTokenizer().serialized, vocabulary=VOCABULARY, ends=frozenset({END_OF_TURN}))


@pytest.mark.parametrize("part", range(8))
def test_what_ends_by_itself_is_valid(made: Grammars, part: int) -> None:
    ended = refused = 0
    for seed in range(part * 40, part * 40 + 40):
        chance = random.Random(seed)
        schema = random_object(chance, chance.randrange(1, 4))
        try:
            grammar = made.compiled(Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(schema)))
        except InvalidRequestError as error:
            if "nsatisfiable" not in error.message:  # what no value can be; nothing else here may be refused
                raise
            refused += 1
            continue
        matcher, answer = grammar.begin(), bytearray()
        while len(answer) < MOST:
            mask = int.from_bytes(matcher.mask(), "little")
            permitted = [token for token in range(VOCABULARY) if mask >> token & 1]
            assert permitted, (schema, answer)
            closing = [token for token in permitted if token in {END_OF_TURN, *b'"}]'}]
            token = chance.choice(closing if closing and chance.random() < 0.3 else permitted)
            if token == END_OF_TURN:
                ended += 1
                jsonschema.validate(json.loads(answer.decode()), schema)
                break
            answer.append(token)
            matcher.accept(token)
    assert ended > 30
    assert refused < 5

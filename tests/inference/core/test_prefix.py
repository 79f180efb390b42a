from __future__ import annotations

from inference.core.prefix import PrefixKeys

FACTS = {"model": "m", "dtype": "float32", "block_size": 4}


def make(secret: bytes = b"secret", **facts: object) -> PrefixKeys:
    return PrefixKeys(secret, **{**FACTS, **facts})  # type: ignore[arg-type]


def test_keys_cover_full_blocks_only_and_repeat():
    keys = make()
    assert len(keys.keys("a", range(11))) == 2
    assert keys.keys("a", range(11)) == make().keys("a", range(8))
    assert keys.keys("a", range(3)) == []


def test_a_key_depends_on_everything_before_it():
    keys = make()
    plain = keys.keys("a", [0, 1, 2, 3, 4, 5, 6, 7])
    other = keys.keys("a", [9, 1, 2, 3, 4, 5, 6, 7])
    assert plain[1] != other[1]


def test_every_field_of_the_root_changes_every_key():
    tokens = range(4)
    seen = {
        make().keys("a", tokens)[0],
        make().keys("b", tokens)[0],
        make(secret=b"other").keys("a", tokens)[0],
        make(model="n").keys("a", tokens)[0],
        make(dtype="bfloat16").keys("a", tokens)[0],
    }
    assert len(seen) == 5


def test_fields_cannot_run_together():
    assert make(model="ab", dtype="c").root("d") != make(model="a", dtype="bc").root("d")
    assert make(dtype="ca").root("b") != make(dtype="c").root("ab")


def test_a_chain_can_be_lengthened_step_by_step():
    keys = make()
    tokens = list(range(40))
    chain: list[bytes] = []
    for count in (1, 1, 4, 7, 10):
        keys.extend(chain, keys.root("a"), tokens, count)
    assert chain == keys.keys("a", tokens)


def test_secrets_of_any_length_are_taken():
    assert make(secret=b"x" * 200).root("a") != make(secret=b"x" * 201).root("a")

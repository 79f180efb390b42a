from __future__ import annotations

import pytest

from inference.core.block_pool import BlockPool
from inference.core.prefix import PrefixKeys

KEYS = PrefixKeys(b"secret", model="m", dtype="float32", block_size=2)


def chain(domain: str, blocks: int, first: int = 0) -> list[bytes]:
    return KEYS.keys(domain, range(first, first + 2 * blocks))


def fill(pool: BlockPool, domain: str, keys: list[bytes]) -> list[int]:
    """Compute, publish and let go of a prefix."""
    blocks = pool.acquire((), len(keys), domain)
    assert blocks is not None
    for block, key in zip(blocks, keys, strict=True):
        pool.publish(block, key)
    pool.release(blocks)
    pool.check()
    return blocks


def test_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert sorted(pool.acquire((), 4, "a") or ()) == [1, 2, 3, 4]
    assert pool.acquire((), 1, "a") is None
    pool.check()


def test_acquire_is_all_or_nothing():
    pool = BlockPool(4)
    assert pool.acquire((), 4, "a") is None
    assert pool.free == 3
    pool.check()


def test_a_published_prefix_is_found_again_and_shared():
    pool = BlockPool(8)
    keys = chain("a", 3)
    blocks = fill(pool, "a", keys)
    assert pool.match(keys) == blocks
    assert pool.match(keys[:2]) == blocks[:2]
    assert pool.match(chain("a", 3, first=1)) == []
    assert pool.acquire(blocks, 1, "a") is not None
    assert pool.acquire(blocks, 0, "a") == []
    assert [pool.references()[block] for block in blocks] == [2, 2, 2]
    pool.release(blocks)
    assert [pool.references()[block] for block in blocks] == [1, 1, 1]
    pool.check()


def test_revived_blocks_count_against_what_is_free():
    pool = BlockPool(4)
    blocks = fill(pool, "a", chain("a", 2))
    assert pool.free == 3
    assert not pool.fits(blocks, 2)
    assert pool.acquire(blocks, 2, "a") is None
    assert pool.fits(blocks, 1)
    assert not pool.fits(blocks, 1, spare=1)


def test_the_first_of_two_equal_blocks_stays_known():
    pool = BlockPool(4)
    key = chain("a", 1)[0]
    one, two = pool.acquire((), 2, "a") or ()
    pool.publish(one, key)
    pool.publish(two, key)
    assert pool.match([key]) == [one]
    pool.release([two])
    pool.release([one])
    assert pool.match([key]) == [one]
    assert pool.cached == 1
    pool.check()


def test_blank_blocks_are_used_before_cached_ones():
    pool = BlockPool(5)
    keys = chain("a", 2)
    cached = fill(pool, "a", keys)
    fresh = pool.acquire((), 2, "a")
    assert fresh is not None
    assert not set(fresh) & set(cached)
    assert pool.match(keys) == cached


def test_eviction_takes_the_tail_of_a_conversation_first():
    pool = BlockPool(4)
    keys = chain("a", 3)
    blocks = fill(pool, "a", keys)
    pool.acquire((), 1, "a")
    assert pool.match(keys) == blocks[:2]
    pool.acquire((), 1, "a")
    assert pool.match(keys) == blocks[:1]
    pool.check()


def test_eviction_is_least_recently_used_first():
    pool = BlockPool(4)
    old, new, newest = (chain("a", 1, first=start) for start in (0, 10, 20))
    first = fill(pool, "a", old)
    fill(pool, "a", new)
    fill(pool, "a", newest)
    pool.acquire(first, 0, "a")  # used again, so it becomes the youngest
    pool.release(first)
    pool.acquire((), 1, "a")
    assert [bool(pool.match(keys)) for keys in (old, new, newest)] == [True, False, True]


def test_a_tenant_that_floods_the_cache_evicts_itself():
    pool = BlockPool(11)
    modest = chain("modest", 2)
    fill(pool, "modest", modest)
    for start in range(100, 200, 10):
        fill(pool, "greedy", chain("greedy", 4, first=start))
    assert len(pool.match(modest)) == 2
    assert pool._cached.count("modest") == 2
    assert pool._cached.count("greedy") == 8


def test_domains_converge_to_equal_shares_under_pressure():
    pool = BlockPool(13)
    for domain in "abc":
        for start in range(0, 40, 4):
            fill(pool, domain, chain(domain, 2, first=start * 10))
    assert [pool._cached.count(domain) for domain in "abc"] == [4, 4, 4]


def test_misuse_is_refused():
    pool = BlockPool(4)
    (block,) = pool.acquire((), 1, "a") or ()
    key = chain("a", 1)[0]
    pool.publish(block, key)
    with pytest.raises(ValueError):
        pool.publish(block, key)
    pool.release([block])
    with pytest.raises(ValueError):
        pool.release([block])
    with pytest.raises(ValueError):
        BlockPool(1)


@pytest.mark.parametrize("spoil", ["refs", "keys", "blank"])
def test_check_sees_what_is_wrong(spoil):
    pool = BlockPool(4)
    fill(pool, "a", chain("a", 1))
    match spoil:
        case "refs":
            pool._refs[2] = 1
        case "keys":
            pool._keys[2] = b"nowhere"
        case "blank":
            pool._blank.append(pool._blank[0])
    with pytest.raises((AssertionError, KeyError)):
        pool.check()

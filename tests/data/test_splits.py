import numpy as np
import pytest

from textcls.data.splits import MAX_TEST_ROWS, Repeats, thresholds

Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(0)


def hashes_of(rng: Rng, n: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return rng.integers(0, 2**64, n, dtype=np.uint64)


@pytest.mark.parametrize("sizes", [(2, 3, 5, 1_000), (10, 11, 12, 13), (50_000, 50_000, 100, 2)])
def test_every_class_gives_its_share(rng: Rng, sizes: tuple[int, ...]) -> None:
    codes = rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))
    hashes = hashes_of(rng, len(codes))
    limits = np.array(thresholds(hashes, codes, len(sizes)), dtype=np.uint64)
    chosen = np.bincount(codes[hashes < limits[codes]], minlength=len(sizes))
    share = min(0.2, MAX_TEST_ROWS / sum(sizes))
    assert [abs(n - max(1, share * size)) <= 0.5 for n, size in zip(chosen, sizes, strict=True)] == [True] * len(sizes)


def test_a_class_of_one_text_stays_in_train(rng: Rng) -> None:
    same = np.repeat(hashes_of(rng, 1), 50)
    hashes = np.concatenate([same, hashes_of(rng, 50)])
    codes = np.repeat(np.arange(2, dtype=np.int32), 50)
    alone, other = thresholds(hashes, codes, 2)
    assert not (same < alone).any()
    assert (hashes[50:] < other).sum() == 10


def test_equal_texts_stay_together(rng: Rng) -> None:
    hashes = rng.permutation(np.repeat(hashes_of(rng, 100), 7))
    (limit,) = thresholds(hashes, np.zeros(700, dtype=np.int32), 1)
    is_test = hashes < limit
    assert set(hashes[is_test].tolist()) & set(hashes[~is_test].tolist()) == set()
    assert is_test.sum() == 140


def test_repeats_are_those_a_set_would_tell(rng: Rng) -> None:
    hashes = rng.choice(hashes_of(rng, 300), 1_000)
    repeats, seen = Repeats(hashes), set[int]()
    for value in hashes.tolist():
        assert repeats.again(value) == (value in seen)
        seen.add(value)
    assert not Repeats(np.zeros(0, dtype=np.uint64)).again(3)

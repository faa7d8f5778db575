"""Which rows are for testing where nobody has said so, and which texts come twice; by the hashes of the texts.

Shapes: N rows, K texts.
"""

import numpy as np
from numpy.typing import NDArray

TEST_SHARE, MAX_TEST_ROWS = 0.2, 10_000
"""Of the rows of own data without a test split, what is carved for it."""


def thresholds(hashes: NDArray[np.uint64], codes: NDArray[np.int32], n_classes: int) -> list[int]:
    """For each class, the hash below which its rows are for testing: as near as can be to the share of its rows.

    The hash is of the seed and the text, so that the choice is random, a function of the content, and the same for
    equal texts of a class: none is in both train and test. Every class keeps a row to train on.
    """
    share = min(TEST_SHARE, MAX_TEST_ROWS / len(codes))
    found = []
    for code in range(n_classes):
        own = np.sort(hashes[codes == code])
        starts = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]]))  # (K,) where each text's rows begin
        wanted = max(1.0, share * len(own))
        found.append(int(own[starts[np.abs(starts - wanted).argmin()]]))
    return found


class Repeats:
    """Tells a text that comes a second time, with memory only for texts that do. (K,) such hashes."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        ordered = np.sort(hashes)
        self._hashes = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        self._met = np.zeros(len(self._hashes), dtype=bool)

    def again(self, value: int) -> bool:
        """Whether this hash was asked for before."""
        at = int(np.searchsorted(self._hashes, np.uint64(value)))
        if at == len(self._hashes) or int(self._hashes[at]) != value:
            return False
        met = bool(self._met[at])
        self._met[at] = True
        return met

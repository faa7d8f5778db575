"""Every test that docs/reliability.md names exists."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMED = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (TESTS.parent / "docs" / "reliability.md").read_text())


def test_tests_are_named() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_named_test_exists(file: str, test: str) -> None:
    assert re.search(rf"def {test}\(", (TESTS / file).read_text())

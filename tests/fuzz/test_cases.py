"""What fuzzing begins with and what it found, replayed: the same comes of it interpreted and compiled."""

import pytest

from tests.fuzz.cases import read
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS
from tests.garbage import free


@pytest.mark.compiled
@pytest.mark.parametrize("target", TARGETS)
def test_cases_mean_the_same_compiled(target: str) -> None:
    for number, case in enumerate(seeds(target) + read(target)):
        assert TARGETS[target](case, False) == TARGETS[target](case, True), case.hex()
        if number % 4 == 0:
            free()

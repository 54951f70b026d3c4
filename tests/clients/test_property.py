"""One property of all scripts: with `loader = fastload.from_dataloader(loader)` they get what they
get without it. Scripts by name, and at random."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest

from tests.clients.cases import NAMED, Case, random_case
from tests.clients.replay import differences

PACKAGES = {
    "accelerate": "accelerate",
    "lightning": "lightning",
    "trainer": "transformers",
    "ray": "ray",
}
ALONE = [name for name, case in NAMED.items() if case.framework == "none" and case.ranks == 1]
GROUPS: dict[tuple[str, int], list[Case]] = defaultdict(list)
for _case in NAMED.values():
    if _case.name not in ALONE:
        GROUPS[_case.framework, _case.ranks].append(_case)


def check(cases: list[Case]) -> None:
    found = differences(cases)
    assert not found, "\n".join(f"{name}: {text}" for name, text in found.items())


def need(framework: str) -> None:
    if framework != "none" and find_spec(PACKAGES[framework]) is None:
        pytest.skip("pip install .[integrations]")
    if framework == "trainer" and find_spec("accelerate") is None:
        pytest.skip("pip install .[integrations]")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.whole] if NAMED[name].workers else [])
        for name in ALONE
    ],
)
def test_what_was_once_wrong(name: str) -> None:
    check([NAMED[name]])


@pytest.mark.whole
@pytest.mark.parametrize(("framework", "ranks"), [key for key in GROUPS if key[0] == "none"])
def test_what_was_once_wrong_on_several_ranks(framework: str, ranks: int) -> None:
    check(GROUPS[framework, ranks])


@pytest.mark.whole
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("framework", "ranks"), [key for key in GROUPS if key[0] != "none"])
def test_what_was_once_wrong_in_a_framework(
    framework: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(framework)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    check(GROUPS[framework, ranks])


@functools.cache
def telling_numbers() -> list[int]:
    """Of 520 random scripts of one rank, each the one with the most pairs of settings that none
    before it has, for its processor time; some 240 have all pairs, the first 60 five of six."""
    pairs, costs = {}, {}
    for number in (*range(120), *range(1000, 1400)):
        case = replace(random_case(number), name="")
        settings = [f"{one}" for one in asdict(case).items()]
        pairs[number] = set(itertools.combinations(settings, 2))
        costs[number] = 2 if case.workers else 1
    numbers = []
    while True:
        best = max(pairs, key=lambda number: len(pairs[number]) / costs[number])
        if not (new := pairs.pop(best)):
            return numbers
        numbers.append(best)
        for others in pairs.values():
            others -= new


@pytest.mark.whole
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_scripts(first: int) -> None:
    check([random_case(number) for number in telling_numbers()[first : first + 20]])


@pytest.mark.whole
@pytest.mark.parametrize(("ranks", "count"), [(2, 24), (4, 12)])
def test_random_scripts_on_several_ranks(ranks: int, count: int) -> None:
    check([random_case(number, "none", ranks) for number in range(count)])


# Persistent workers of a DataLoader keep the collate function that they started with, ours take the
# new one (docs/clients.md).
DIFFERENT = {f"none 1 {number}" for number in (1256, 1302)}


@pytest.mark.whole
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("framework", ["none", *PACKAGES])
def test_more_random_scripts(framework: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need(framework)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    numbers: Iterable[int] = range(1000, 1060)
    if framework == "none":
        numbers = {1: telling_numbers()[60:], 2: range(24, 50), 4: range(12, 30)}[ranks]
    cases = [random_case(number, framework, ranks) for number in numbers]
    check([case for case in cases if case.name not in DIFFERENT])

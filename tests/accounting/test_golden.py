import csv
from pathlib import Path

import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts
from accounting.events import Event, FixedSize, Full, Gaussian, NeighboringRelation, Poisson

pytestmark = pytest.mark.no_cover  # of values; other tests reach the lines, and untraced it is fast

GOLDEN = Path(__file__).parents[1] / "golden"
AGREEMENT = 1e-6
# How far above a bracket's upper end a Renyi bound may lie: it keeps only moments.
LOOSENESS = 1.6


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_are_as_long_as_they_should_be() -> None:
    assert len(rows("renyi_peers.csv")) >= 50
    assert len(rows("fixed_size.csv")) == 16


@pytest.mark.parametrize("row", rows("renyi_peers.csv"), ids=lambda row: "-".join(row.values()))
def test_epsilon_agrees_with_the_peers(row: dict[str, str]) -> None:
    q = float(row["sampling_probability"])
    event = Event(
        mechanism=Gaussian(noise_multiplier=float(row["noise_multiplier"])),
        sampling=Full() if q == 1 else Poisson(sampling_probability=q),
    )
    answer = guarantee(
        EventCounts(steps={event: int(row["steps"])}),
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        delta=float(row["delta"]),
        accountant="rdp",
    )
    assert answer.epsilon == pytest.approx(float(row["epsilon_dp_accounting"]), rel=AGREEMENT)
    assert answer.epsilon == pytest.approx(float(row["epsilon_opacus"]), rel=AGREEMENT)


@pytest.mark.parametrize("accountant", ["best", "rdp"])
@pytest.mark.parametrize("row", rows("fixed_size.csv"), ids=lambda row: "-".join(row.values()))
def test_a_fixed_size_is_never_below_its_certified_bracket(
    row: dict[str, str], accountant: str
) -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=float(row["noise_multiplier"])),
        sampling=FixedSize(
            batch_size=int(row["batch_size"]), dataset_size=int(row["dataset_size"])
        ),
    )
    answer = guarantee(
        EventCounts(steps={event: int(row["steps"])}),
        relation=NeighboringRelation(row["neighboring_relation"]),
        delta=float(row["delta"]),
        accountant=accountant,
    )
    assert answer.epsilon is not None
    lower, upper = float(row["epsilon_lower"]), float(row["epsilon_upper"])
    assert lower <= answer.epsilon <= LOOSENESS * upper

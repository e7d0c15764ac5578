"""What is wrong, withdrawn or unproved is listed, evaluated and explained, and used by nothing."""

import ast
import itertools
import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from accounting import (
    THEOREMS,
    EventCounts,
    NeighboringRelation,
    Span,
    Status,
    count_events,
    guarantee,
)
from accounting.accountants.best_bound import best_bound
from accounting.accountants.best_first import ACCOUNTANTS
from accounting.events import (
    ApproximateDp,
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NonUniform,
    Poisson,
    RandomAllocation,
    RandomizedResponse,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    Unknown,
    WithReplacement,
)
from accounting.filters import RenyiFilter, best_order
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT
from accounting.hidden_state import guarantee_of_hidden
from accounting.hidden_state_runs import HiddenRun
from accounting.last_iterate.declared import DataOrder, Declared, Stage
from accounting.literature.refuted import THEOREMS as QUARANTINED
from service.cli.main import app
from service.schemas.requests import NewDataset
from tests.accounting.quarantined import EXAMPLES, said

ROOT = Path(__file__).parents[2]
IDS = {one.id for one in QUARANTINED}
NEVER = frozenset(Status) - ACCEPTABLE


def test_only_what_is_not_proved_is_quarantined_and_all_of_it() -> None:
    unproved = {Status.CONJECTURE, Status.RETRACTED, Status.REFUTED}
    assert {one.id for one in THEOREMS if one.status in unproved} == IDS
    assert {one.status for one in QUARANTINED} == unproved
    assert len(IDS) == len(QUARANTINED)


def test_each_statement_has_a_test_that_names_it() -> None:
    files = Path(__file__).parent.glob("test_quarantine*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert {bound for bound in IDS if f'"{bound}"' not in text} == set()


# No way in


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path  # no relative imports
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module != "accounting":  # of the package only what is named can be used
                found.add(str(node.module))
    return found


def test_no_module_of_the_core_but_the_catalog_imports_the_quarantine() -> None:
    package = ROOT / "accounting"
    listing = {
        package / "__init__.py",
        package / "catalog.py",
        package / "literature" / "__init__.py",
    }
    outside = {
        path: imported(path)
        for path in package.rglob("*.py")
        if path.parent.name != "refuted" and path not in listing
    }
    assert len(outside) > 50
    for path, names in outside.items():
        assert not any(name.startswith("accounting.literature.refuted") for name in names), path
        # Nor the listing, through which it could be reached.
        assert "accounting" not in names, path
        assert "accounting.*" not in names, path
        assert "accounting.THEOREMS" not in names, path
        assert "accounting.catalog" not in names, path
        text = path.read_text(encoding="utf-8")
        assert "import_module" not in text, path
        assert "__import__" not in text, path


def test_of_the_service_only_a_figure_imports_the_quarantine() -> None:
    users = {
        path.parent.relative_to(ROOT / "service")
        for path in (ROOT / "service").rglob("*.py")
        if any(name.startswith("accounting.literature.refuted") for name in imported(path))
    }
    assert users <= {Path("cli", "figures")}


def test_the_quarantine_states_every_one_of_its_theorems_once() -> None:
    listed = [
        node.args
        for path in (ROOT / "accounting" / "literature" / "refuted").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id == "theorem"
    ]
    assert len(listed) == len(QUARANTINED)


# No way up

GAUSSIAN = Gaussian(noise_multiplier=2.0)
SAMPLINGS: tuple[Sampling, ...] = (
    Full(),
    Unknown(),
    Poisson(sampling_probability=0.01),
    FixedSize(batch_size=10, dataset_size=1000),
    TruncatedPoisson(sampling_probability=0.01, max_batch_size=15, dataset_size=1000),
    WithReplacement(batch_size=2, dataset_size=1000),
    Cyclic(batch_size=10, steps_per_pass=100),
    Shuffle(batch_size=10, steps_per_pass=100, reshuffle=Reshuffle.ONCE, dataset_size=1000),
    Shuffle(batch_size=1, steps_per_pass=500, reshuffle=Reshuffle.EACH_PASS, dataset_size=1000),
    Shuffle(batch_size=1, steps_per_pass=1000, reshuffle=Reshuffle.EACH_PASS, dataset_size=1000),
    BallsAndBins(steps_per_pass=100),
    RandomAllocation(steps_per_pass=100, participations=2),
    NonUniform(max_weight=0.01),
)
MECHANISMS: tuple[Mechanism, ...] = (
    Laplace(noise_multiplier=5.0),
    RandomizedResponse(probability_of_truth=0.6, categories=2),
    ApproximateDp(epsilon=0.1, delta=1e-8),
)
EVENTS = [Event(mechanism=GAUSSIAN, sampling=one) for one in SAMPLINGS]
EVENTS += [Event(mechanism=one, sampling=SAMPLINGS[i]) for one in MECHANISMS for i in (0, 2)]


def counts_with(event: Event) -> EventCounts:
    return count_events([[Span(event=event, steps=2)]])


@pytest.mark.no_cover
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event)[:60])
def test_nothing_quarantined_is_ever_used(event: Event) -> None:
    counts = counts_with(event)
    for relation, accept in itertools.product(
        NeighboringRelation, (ACCEPTABLE, DEFAULT_ACCEPT, frozenset({Status.DERIVED}))
    ):
        for accountant in ("best", *ACCOUNTANTS):
            found = guarantee(
                counts, relation=relation, delta=1e-5, accept=accept, accountant=accountant
            )
            shown = [bound for bound in (found.headline, *found.alternatives) if bound]
            names = {bound.bound for bound in shown}.union(*(bound.theorems for bound in shown))
            assert not names & IDS
            assert not {bound.status for bound in shown} & NEVER
    assert guarantee(counts, relation=NeighboringRelation.REPLACE_ONE, delta=1e-5).epsilon != 0


HIDDEN: tuple[tuple[DataOrder, Sampling], ...] = (
    (DataOrder.FULL, Full()),
    (DataOrder.CYCLIC, Cyclic(batch_size=10, steps_per_pass=10)),
    (
        DataOrder.SHUFFLE_ONCE,
        Shuffle(batch_size=10, steps_per_pass=10, reshuffle=Reshuffle.ONCE, dataset_size=100),
    ),
    (
        DataOrder.SHUFFLE_EACH_PASS,
        Shuffle(batch_size=10, steps_per_pass=10, reshuffle=Reshuffle.EACH_PASS, dataset_size=100),
    ),
    (DataOrder.FIXED_SIZE, FixedSize(batch_size=10, dataset_size=100)),
    (DataOrder.POISSON, Poisson(sampling_probability=0.1)),
)


@pytest.mark.parametrize(("order", "sampling"), HIDDEN, ids=lambda one: str(one)[:20])
def test_nothing_quarantined_is_used_for_hidden_iterates(
    order: DataOrder, sampling: Sampling
) -> None:
    span = Span(event=Event(mechanism=GAUSSIAN, sampling=sampling), steps=20)
    declared = Declared(
        data_order=order,
        loss_smoothness=1.0,
        loss_convexity=0.0,
        learning_rate=(Stage(first_step=0, learning_rate=0.1),),
        max_grad_norm=1.0,
        gradient_divisor=10.0,
        projection_diameter=0.1,
        clipping_can_be_active=False,
        generalized_linear_model=False,
    )
    run = HiddenRun(spans=(span,), declared=declared, dataset_size=100)
    gained = []
    for relation in NeighboringRelation:
        shown = guarantee(count_events([[span]]), relation=relation, delta=1e-5, accept=ACCEPTABLE)
        answers = [
            guarantee_of_hidden(shown, run, accept=accept)
            for accept in (ACCEPTABLE, ACCEPTABLE | NEVER)
        ]
        assert answers[0] == answers[1]
        bounds = [one for one in (answers[0].headline, *answers[0].alternatives) if one]
        assert not set().union(*(one.theorems for one in bounds)) & IDS
        assert not {one.status for one in bounds} & NEVER
        gained += [one for one in bounds if Status.CONDITIONAL is one.status]
    assert gained  # it was asked for something


@pytest.mark.parametrize("status", sorted(NEVER))
def test_what_is_not_proved_cannot_be_accepted(status: Status) -> None:
    counts = counts_with(EVENTS[0])
    accept = frozenset({Status.PUBLISHED, status})
    relation = NeighboringRelation.REPLACE_ONE
    for ask in (guarantee, best_bound):
        with pytest.raises(ValueError, match="never accepted"):
            ask(counts, relation=relation, delta=1e-5, accept=accept)
    with pytest.raises(ValueError, match="accept"):
        NewDataset.model_validate(
            {
                "name": "a", "dataset_size": 10, "neighboring_relation": "replace_one",
                "privacy_unit": "record", "accept": ["published", status.value],
            }
        )  # fmt: skip


def test_a_filter_spends_the_same_whatever_unproved_status_is_accepted() -> None:
    # It is not asked to refuse them: no theorem it can reach has one.
    order = best_order(epsilon=3.0, delta=1e-5)
    held = RenyiFilter(order=order, epsilon=3.0, delta=1e-5)
    for event, relation in itertools.product(EVENTS, NeighboringRelation):
        counts = counts_with(event)
        spent = [
            held.total(counts, relation=relation, accept=accept)
            for accept in (ACCEPTABLE, ACCEPTABLE | NEVER)
        ]
        assert spent[0] == spent[1]


# By name


@pytest.mark.parametrize("bound", sorted(EXAMPLES))
def test_the_command_line_evaluates_a_quarantined_statement(bound: str) -> None:
    answer = CliRunner().invoke(app, ["bound", bound, "--params", json.dumps(EXAMPLES[bound])])
    assert "and bounds nothing" in answer.stderr
    assert answer.exit_code == 0, answer.output
    value = json.loads(answer.stdout)
    assert (value[-1] if isinstance(value, list) else value) == said(bound, **EXAMPLES[bound])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_registry_shows_each_status_and_what_is_against_it(api: httpx.Client) -> None:
    listed = {bound["id"] for bound in api.get("/v1/bounds").json()["bounds"]}
    assert listed >= IDS
    for one in QUARANTINED:
        shown = api.get(f"/v1/bounds/{one.id}").json()
        assert shown["status"] == one.status.value
        assert shown["counterexample"] == one.counterexample
        assert one.counterexample

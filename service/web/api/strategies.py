"""Strategies of correlated noise: kept once, named by their content, and how far they reach."""

from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import Field

from service.identity.authentication import Trainer, Viewer
from service.ledger.append.write_access import run_in_write_transaction
from service.ledger.budgets.strategies import (
    SensitivityAnswer,
    StrategyAnswer,
    find_strategy,
    keep_strategy,
    strategy_row,
)
from service.schemas.correlated.steps import (
    DIGEST_PATTERN,
    PASS_MAX,
    MinSeparationSampling,
    to_min_separation,
)
from service.schemas.correlated.strategies import NewStrategy, found_sensitivity, read_strategy
from service.schemas.message import Within
from service.storage.engine import snapshot
from service.web.parameters import Database, Parameters, repeated
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1/strategies", tag="strategies")
DigestPath = Annotated[
    str, Path(pattern=DIGEST_PATTERN, description="What names the strategy: sha256: and 64 digits.")
]
_Count = Annotated[int, Within(1, PASS_MAX)]


class SensitivityQuery(Parameters):
    """In which steps of a pass a record may take part."""

    steps_per_pass: _Count = Field(description="Steps of the pass.")
    min_separation: _Count = Field(description="Two steps of a record are at least so many apart.")
    participations: _Count | None = Field(
        default=None,
        description="Steps of a record, at most; by default ceil(steps_per_pass / min_separation).",
    )


_Asked = Annotated[SensitivityQuery, Query()]


@router.post("", status_code=201, responses=repeated(StrategyAnswer))
def store_strategy(
    new: NewStrategy, database: Database, caller: Trainer, response: Response
) -> StrategyAnswer:
    """Keep a strategy; 200 when the same one was kept before."""
    answer, created = run_in_write_transaction(
        database, lambda connection: keep_strategy(connection, new.strategy, by=caller.name)
    )
    response.status_code = 201 if created else 200
    return answer


@router.get("/{digest}")
def get_strategy(digest: DigestPath, database: Database, _caller: Viewer) -> StrategyAnswer:
    """A strategy, by its digest."""
    with snapshot(database) as connection:
        return find_strategy(connection, digest)


@router.get("/{digest}/sensitivity")
@expensive
def get_sensitivity(
    digest: DigestPath, query: _Asked, database: Database, _caller: Viewer
) -> SensitivityAnswer:
    """The square of how far one record moves a pass of a strategy, and the rule that says so."""
    with snapshot(database) as connection:
        strategy = read_strategy(strategy_row(connection, digest).content)
    message = MinSeparationSampling(
        kind="min_separation", placement="by_record", **query.model_dump()
    )
    sampling = to_min_separation(message, location="query")
    found = found_sensitivity(strategy, sampling, location="path.digest")
    return SensitivityAnswer(
        sensitivity_squared=found.squared, rule=found.rule, exact=found.attained
    )

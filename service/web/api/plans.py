"""What reads no ledger: plans, and the theorems that a bound may rest on."""

from service.errors import NotFoundError
from service.guarantees import plan
from service.guarantees.plan import Plan, PlanQuery
from service.guarantees.theorem_catalog import BoundAnswer, BoundList, bound_answers
from service.identity.authentication import Viewer
from service.schemas.plan_response import PlanAnswer
from service.web.parameters import BoundName
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1")


@router.post("/plan", tags=["plan"])
@expensive
def account_plan(asked: PlanQuery, _caller: Viewer) -> PlanAnswer:
    """Epsilon of events that have not happened, or the value they leave open for an epsilon."""
    return plan.account_plan(asked) if isinstance(asked, Plan) else plan.solve(asked)


@router.get("/bounds", tags=["bounds"])
def list_bounds(_caller: Viewer) -> BoundList:
    """Every theorem: statement, source, status, assumptions, parameters."""
    return BoundList(bounds=list(bound_answers().values()))


@router.get("/bounds/{bound}", tags=["bounds"])
def get_bound(bound: BoundName, _caller: Viewer) -> BoundAnswer:
    """One theorem."""
    found = bound_answers().get(bound)
    if found is None:
        raise NotFoundError("There is no such bound.")
    return found

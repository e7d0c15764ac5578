"""Plans: what events would cost, or what keeps them to a target. Nothing is recorded."""

from fastapi import APIRouter

from service.guarantees import plan
from service.guarantees.plan import Plan, PlanQuery
from service.identity.authentication import Viewer
from service.schemas.plan_response import PlanAnswer
from service.web.strict_requests import StrictRoute, expensive

router = APIRouter(prefix="/v1/plan", route_class=StrictRoute, tags=["plan"])


@router.post("")
@expensive
def account_plan(asked: PlanQuery, _caller: Viewer) -> PlanAnswer:
    """Epsilon of events that have not happened, or the value they leave open for an epsilon."""
    return plan.account_plan(asked) if isinstance(asked, Plan) else plan.solve(asked)

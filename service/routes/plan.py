"""Plans: what events would cost, or what keeps them to a target. Nothing is recorded."""

from fastapi import APIRouter

from service import plans
from service.auth import Viewer
from service.gate import Passage, passage
from service.http import StrictRoute, dear
from service.plan_responses import PlanAnswer
from service.plans import Asked, Plan

router = APIRouter(prefix="/v1/plan", route_class=StrictRoute, tags=["plan"])


@router.post("")
@dear
@passage(Passage.PASSES)
def account_plan(asked: Asked, _caller: Viewer) -> PlanAnswer:
    """Epsilon of events that have not happened, or the value they leave open for an epsilon."""
    return plans.account(asked) if isinstance(asked, Plan) else plans.solve(asked)

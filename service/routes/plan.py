"""Plans: what events would cost, without recording anything."""

from fastapi import APIRouter

from accounting import accountants
from accounting.balances import balance_of
from service.admission import unbounded
from service.answers import GuaranteeAnswer, guarantee_answer
from service.auth import Viewer
from service.documents import spans_of
from service.errors import UnsupportedEventError
from service.http import StrictRoute
from service.schemas import Plan, accepted_statuses, relation_of

router = APIRouter(prefix="/v1/plan", route_class=StrictRoute, tags=["plan"])


@router.post("")
def plan(asked: Plan, _caller: Viewer) -> GuaranteeAnswer:
    """Epsilon of events that have not happened."""
    relation = relation_of(asked.neighboring_relation)
    accept = accepted_statuses(asked.accept)
    spans = spans_of(asked.events, dataset_size=asked.dataset_size, first_step=0)
    for index, span in enumerate(spans):
        if reason := unbounded(span.event, relation=relation, accept=accept):
            raise UnsupportedEventError(index, reason)
    balance = balance_of([spans])
    found = accountants.guarantee(balance, relation=relation, delta=asked.delta, accept=accept)
    return guarantee_answer(found, balance=balance, sequence=0)

"""The registry: every theorem built."""

from fastapi import APIRouter

from service.errors import NotFoundError
from service.guarantees.theorem_catalog import BoundAnswer, BoundList, bound_answers
from service.identity.authentication import Viewer
from service.web.parameters import BoundName
from service.web.strict_requests import StrictRoute

router = APIRouter(route_class=StrictRoute, prefix="/v1/bounds", tags=["bounds"])


@router.get("")
def list_bounds(_caller: Viewer) -> BoundList:
    """Every theorem: statement, source, status, assumptions, parameters."""
    return BoundList(bounds=list(bound_answers().values()))


@router.get("/{bound}")
def get_bound(bound: BoundName, _caller: Viewer) -> BoundAnswer:
    """One theorem."""
    found = bound_answers().get(bound)
    if found is None:
        raise NotFoundError("There is no such bound.")
    return found

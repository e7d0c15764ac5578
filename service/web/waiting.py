"""The answer where a change waits for the approval of another person."""

from typing import Any, Final

from fastapi.responses import JSONResponse

from service.ledger.change_requests.messages import ChangeRequestAnswer

WAITS_FOR_APPROVAL: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "model": ChangeRequestAnswer,
        "description": "Nothing has changed yet: another person must approve this request",
    }
}


def request_path(found: ChangeRequestAnswer) -> str:
    """Where a request is read and decided."""
    return f"/v1/requests/{found.id}"


def waiting_answer(found: ChangeRequestAnswer) -> JSONResponse:
    """202, with the address of the request."""
    headers = {"Location": request_path(found)}
    return JSONResponse(found.model_dump(mode="json"), 202, headers=headers)

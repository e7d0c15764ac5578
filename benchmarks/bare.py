"""What the framework alone costs: the service's append message and answer, and no ledger.

Served with the settings of `dpledger serve`; the answer carries no guarantee and nothing is logged,
which makes it as fast as it can be.

    python -m benchmarks.bare PORT
"""

import sys

import uvicorn
from fastapi import FastAPI

from service.schemas.requests import EventBatch
from service.schemas.responses import AppendAnswer
from service.web.api.health import Health

app = FastAPI()


@app.post("/v1/runs/{run}/events", status_code=201)
async def append(run: str, batch: EventBatch) -> AppendAnswer:
    """Read a batch, check it against its model and answer."""
    last = batch.events[-1]
    return AppendAnswer(
        accepted=sum(event.steps for event in batch.events),
        duplicates=0,
        next_step=last.first_step + last.steps,
        sequence=last.first_step + 1,
        verdict="within",
        guarantee=None,
        budget=None,
    )


@app.get("/readyz")
async def readyz() -> Health:
    """It answers."""
    return Health(status="ready")


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_config=None,
        access_log=False,  # the service logs requests itself, so uvicorn's log is off there too
        server_header=False,
    )

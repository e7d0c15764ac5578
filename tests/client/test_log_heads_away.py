"""Services that compare no heads, or do not answer: no matter for who trains."""

from pathlib import Path

import httpx
import pytest
from dpledger_client import Client

from tests.client.log_head_answers import answering
from tests.client.test_log_heads import head_of


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 502, 503])
def test_a_service_that_does_not_compare_is_no_matter(spool: Path, status: int) -> None:
    with answering(status, {"type": "/problems/unavailable"}) as client:
        head_of(client, spool).compare()
    assert list(spool.parent.glob("spool/*")) == []


def test_a_service_that_is_away_is_no_matter(spool: Path) -> None:
    def away(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with Client(transport=httpx.MockTransport(away), retries=0) as client:
        head_of(client, spool).compare()

"""The pages that tell the HTTP interface: all of it, without a key, nothing from elsewhere."""

import re
from collections.abc import Iterator

import httpx
import pytest

from service.app import openapi_document, wire
from service.identity.authentication import KeyRing
from service.settings import Settings
from service.storage.engine import connect
from service.web.dashboard.pages.api_browser import _told_calls
from service.web.dashboard.rendering import PAGE_POLICY
from tests.conftest import AS_ADMIN


@pytest.fixture
def stranger(api: httpx.Client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.base_url) as client:
        yield client


def test_every_call_is_told_to_who_has_no_key(stranger: httpx.Client) -> None:
    answer = stranger.get("/docs")
    assert answer.status_code == 200
    for path, item in openapi_document()["paths"].items():
        for method, operation in item.items():
            assert f'id="{operation["operationId"]}"' in answer.text
            assert f"{method.upper()}</span> <code>{path}</code>" in answer.text


def test_every_message_has_a_page_that_every_link_finds(stranger: httpx.Client) -> None:
    names = set(openapi_document()["components"]["schemas"])
    linked = set(re.findall(r'href="/docs/messages/(\w+)"', stranger.get("/docs").text))
    assert linked == names
    ids = set(re.findall(r'id="(\w+)"', stranger.get("/docs").text))
    for name in ("NewDataset", "EventBatch", "Problem", "Assumption", "GuaranteeAnswer"):
        page = stranger.get(f"/docs/messages/{name}")
        assert page.status_code == 200
        assert f"<h1>{name}</h1>" in page.text
        assert set(re.findall(r'href="/docs/messages/(\w+)"', page.text)) <= names
        assert set(re.findall(r'href="/docs#(\w+)"', page.text)) <= ids


def test_a_message_is_told_with_its_properties_its_range_and_an_example(
    stranger: httpx.Client,
) -> None:
    page = stranger.get("/docs/messages/NewDataset").text
    assert "What one record stands for" in page
    assert "at least 1, at most 1,000,000,000,000" in page
    assert "POST /v1/datasets" in page
    assert "one patient" in page  # of the example


def test_what_there_is_not_is_not_found(stranger: httpx.Client) -> None:
    assert stranger.get("/docs/messages/Nothing").status_code == 404


def test_the_pages_load_nothing_from_elsewhere_and_no_inline_script(
    stranger: httpx.Client,
) -> None:
    for path in ("/docs", "/docs/messages/NewDataset"):
        answer = stranger.get(path, headers=AS_ADMIN)
        assert answer.headers["content-security-policy"] == PAGE_POLICY
        assert not re.search(r'(src|href)="(https?:)?//', answer.text)
        assert not re.search(r"<script(?![^>]* src=)|<style|style=", answer.text)


def test_the_document_and_what_is_told_of_it_are_made_once() -> None:
    app = wire(engine := connect("sqlite:///never-opened.db"), KeyRing(engine), Settings())
    assert app.openapi() is app.openapi()
    assert _told_calls(app) is _told_calls(app)
    assert "<script>" not in _told_calls(app)

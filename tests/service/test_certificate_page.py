"""The page of a certificate: the same facts for people, and nothing that loads or runs."""

import base64
import hashlib

import pytest

import accounting
from service.transparency.certificates.envelope import seal_certificate
from service.transparency.certificates.html import certificate_page
from service.transparency.signing import Signer
from tests.service.certifying import certificate_of, said, signer_of, signing
from tests.service.samples import Json, append, event, setup


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return signer_of(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def raw(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return certificate_of(tmp_path_factory.mktemp("certified"), signer)


class Page:
    """What of a page matters here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def file(self) -> bytes:
        data = self.text.partition('href="data:application/json;base64,')[2].partition('"')[0]
        return base64.b64decode(data)


def test_the_page_holds_the_file_and_names_its_digest(raw: bytes) -> None:
    page = Page(certificate_page(raw))
    assert page.file() == raw
    assert hashlib.sha256(raw).hexdigest() in page.text
    assert said(raw)["statements"][0]["bound"] in page.text
    assert accounting.__version__ in page.text


def test_what_others_wrote_is_text_on_the_page_and_nothing_else(
    database_url: str, signer: Signer
) -> None:
    evil = "<script>alert('x')</script>\"&'><img src=x onerror=alert(1)>"
    with signing(database_url, signer) as api:
        setup(api, dataset_given={"privacy_unit": evil}, labels={"library.opacus": evil})
        append(api, event(0, 10))
        answer = api.get("/v1/runs/run/certificate", headers={"Accept": "text/html, */*"})
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        again = api.get("/v1/runs/run/certificate?format=json", headers={"Accept": "text/html"})
        assert again.headers["content-type"] == "application/json"
        plain = api.get("/v1/runs/run/certificate")
        assert plain.headers["content-type"] == "application/json"
    visible = answer.text.replace(Page(answer.text).file().decode(), "")
    assert "<script" not in visible
    assert "<img" not in visible
    assert visible.count("&lt;script&gt;") >= 2
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy
    assert "unsafe" not in policy
    style = answer.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    addresses = {part.partition('"')[0] for part in answer.text.split('="')[1:]}
    assert not [one for one in addresses if one.startswith(("http", "//"))]


def test_a_page_never_shows_an_upper_bound_below_itself(raw: bytes, signer: Signer) -> None:
    certificate = said(raw)
    certificate["statements"][0] |= {"epsilon": 1.2345601, "epsilon_lower": 1.2345699}
    page = certificate_page(seal_certificate(certificate, signer))
    assert "1.23457" in page
    assert "1.23456<" in page


def warnings(certificate: Json, signer: Signer) -> list[str]:
    page = certificate_page(seal_certificate(certificate, signer))
    return [part.partition("</p>")[0] for part in page.split('<p class="loud">')[1:]]


def test_a_run_that_samples_otherwise_or_that_an_audit_contradicts_is_told_at_the_top(
    raw: bytes, signer: Signer
) -> None:
    certificate = said(raw)
    for one in certificate["standing"]:
        one |= {"sampling_status": "detected", "audits": []}
    before = warnings(certificate, signer)
    certificate["standing"][0]["sampling_status"] = "contradicted"
    (found,) = set(warnings(certificate, signer)) - set(before)
    assert found.startswith("Epsilon may be TOO LOW: the code of run run was seen to sample")
    certificate["standing"][0] |= {"sampling_status": "declared"}
    told = said(raw)["standing"][0]["audits"]
    assert told
    certificate["standing"][0]["audits"] = [told[0] | {"contradicts": True}]
    (found,) = set(warnings(certificate, signer)) - set(before)
    assert found == "Epsilon is TOO LOW: an audit of run run contradicts it."


def test_a_page_says_in_words_what_the_file_says_in_names(raw: bytes) -> None:
    visible = certificate_page(raw).partition("<h2>How to check it</h2>")[0]
    table = visible.partition("<h2>Theorems</h2>")[0]
    assert "Add or remove one" in table
    assert "best of these" in table
    names = ("add_or_remove_one", "sampling_contradicted", "independent_gaussian_noise", ">rdp<")
    assert [name for name in names if name in table] == []

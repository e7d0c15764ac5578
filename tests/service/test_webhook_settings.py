"""What the settings say of webhooks, and what their receivers verify."""

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from service.errors import StartupError
from service.ledger.incidents import Kind
from service.operations import webhooks
from service.operations.webhooks import signature, webhooks_of
from service.settings import Settings
from tests.service.receiver import PHRASE, secret_in

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://example.org/hook", "https"),
        ("ftp://127.0.0.1/", "https"),
        ("http://127.0.0.1.example.org/", "https"),
        ("http://localhost.example.org/", "https"),
        ("http://[::2]/", "https"),
        ("https://user:word@example.org/", "no password"),
        ("https://user@example.org/", "no password"),
        ("https:///hook", "no host"),
        ("example.org/hook", "no host"),
        ("https://example.org:port/", "not a URL"),
        ("https://[::1/", "not a URL"),
        ("https://example.org/#part", "fragment"),
        ("https://example.org/a\r\nb", "printable"),
        ("https://ex\u00e4mple.org/", "printable"),
        ("https://example.org/ b", "printable"),
    ],
)
def test_an_address_that_is_not_fit_keeps_the_service_from_starting(
    tmp_path: Path, address: str, words: str
) -> None:
    settings = Settings(webhooks=(address,), webhook_secret_file=secret_in(tmp_path))
    with pytest.raises(StartupError, match=words) as refusal:
        webhooks_of(settings)
    assert address not in str(refusal.value)


@pytest.mark.parametrize(
    "address", ["http://localhost:1/", "http://[::1]:1/x", "http://127.9.9.9", "https://e.org?a=b"]
)
def test_an_address_that_is_fit_is_taken(tmp_path: Path, address: str) -> None:
    settings = Settings(webhooks=(address, address), webhook_secret_file=secret_in(tmp_path))
    found = webhooks_of(settings)
    assert [target.geturl() for target in found.targets] == [address]
    assert found.kinds == frozenset(Kind)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("x" * 31, "32 characters"),
        ("  " + "x" * 31 + "\n", "32 characters"),
        ("whsec_" + "*" * 40, "base64"),
        ("whsec_" + "A" * 28, "24 bytes"),
    ],
)
def test_a_weak_secret_keeps_the_service_from_starting(
    tmp_path: Path, secret: str, words: str
) -> None:
    file = tmp_path / "weak"
    file.write_text(secret, encoding="utf-8")
    settings = Settings(webhooks=("https://example.org",), webhook_secret_file=file)
    with pytest.raises(StartupError, match=words) as refusal:
        webhooks_of(settings)
    assert secret.strip() not in str(refusal.value)


def test_an_address_needs_a_secret_and_known_kinds_and_few_others(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="DPLEDGER_WEBHOOK_SECRET_FILE"):
        webhooks_of(Settings(webhooks=("https://example.org",)))
    absent = tmp_path / "absent"
    with pytest.raises(StartupError, match="DPLEDGER_WEBHOOK_SECRET_FILE"):
        webhooks_of(Settings(webhooks=("https://example.org",), webhook_secret_file=absent))
    with pytest.raises(StartupError, match="unheard"):
        webhooks_of(Settings(webhook_kinds=("overdraft", "unheard-of")))
    many = tuple(f"https://example.org/{number}" for number in range(webhooks.TARGETS_MAX + 1))
    with pytest.raises(StartupError, match="16"):
        webhooks_of(Settings(webhooks=many, webhook_secret_file=secret_in(tmp_path)))
    assert webhooks_of(Settings()).targets == ()


def test_the_environment_names_several_things_in_one_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPLEDGER_WEBHOOKS", "https://a.example  https://b.example")
    monkeypatch.setenv("DPLEDGER_WEBHOOK_KINDS", "overdraft, threshold")
    monkeypatch.setenv("DPLEDGER_BUDGET_THRESHOLDS", "1,0.25 1")
    settings = Settings()
    assert settings.webhooks == ("https://a.example", "https://b.example")
    assert settings.webhook_kinds == ("overdraft", "threshold")
    assert settings.budget_thresholds == (0.25, 1.0)


@pytest.mark.parametrize("given", ["0", "1.01", "-0.5", "nan", "half"])
def test_a_threshold_is_a_fraction(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DPLEDGER_BUDGET_THRESHOLDS", given)
    with pytest.raises(ValueError, match="budget_thresholds"):
        Settings()


def test_the_signature_is_that_of_the_standard_webhooks(tmp_path: Path) -> None:
    # Computed by `openssl dgst -sha256 -mac HMAC -binary | base64` over the signed text.
    file = tmp_path / "encoded"
    file.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr", encoding="utf-8")
    settings = Settings(webhooks=("https://example.org",), webhook_secret_file=file)
    key = webhooks_of(settings).key
    assert key == base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr")
    found = signature(key, "msg_1", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,H5qvpSFHKoe4qm+iYFTTIEtD+z7sWI4Yn2cm4CPNDTU="


def test_the_guides_receiver_believes_what_is_signed_and_nothing_else() -> None:
    guide = (ROOT / "docs" / "guide" / "streams.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(guide.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102 (our own)
    is_genuine, body, present = names["is_genuine"], b'{"kind": "overdraft"}', int(time.time())
    encoded = "whsec_" + base64.b64encode(b"k" * 32).decode()
    for phrase, key in ((PHRASE, PHRASE.encode()), (encoded, b"k" * 32)):
        for second, genuine in ((present, True), (present - 600, False), (present + 600, False)):
            headers = {
                "webhook-id": "incident-1",
                "webhook-timestamp": str(second),
                "webhook-signature": signature(key, "incident-1", second, body),
            }
            assert is_genuine(phrase, headers, body) is genuine
        assert not is_genuine(phrase, headers | {"webhook-timestamp": str(present)}, body)
        headers["webhook-timestamp"] = str(present)
        headers["webhook-signature"] = signature(key, "incident-1", present, body)
        assert not is_genuine(phrase, headers, body + b" ")
        assert not is_genuine(phrase, headers | {"webhook-id": "incident-2"}, body)

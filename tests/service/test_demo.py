"""The demo, as a user runs it: what it prints, how it leaves, what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from service.cli import EXIT_INTERRUPTED, demo
from tests.service.browsing import browser
from tests.service.test_keys import bearer

COMMAND = [sys.executable, "-m", "service.cli.main", "demo"]
SECONDS = 120


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary files under the test's folder, and an operator's settings that must not leak in."""
    return {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "COLUMNS": "100",
        "DPLEDGER_HOST": "192.0.2.1",
        "DPLEDGER_ADMIN_KEY_FILE": "/nowhere",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }


def row(text: str, scheme: str) -> tuple[float, float]:
    """(test accuracy in percent, epsilon) of a row of the table."""
    found = re.search(rf"{scheme}\W+([\d.]+)%\W+([\d.]+)", text)
    assert found, text
    return float(found[1]), float(found[2])


def test_the_demo_prints_both_epsilons_and_checks_one_of_them(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        COMMAND, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    accuracy, poisson = row(done.stdout, "Poisson")
    _, shuffled = row(done.stdout, "shuffled")
    assert accuracy > 85
    assert poisson < 10
    assert shuffled > poisson
    composed = re.search(r"has spent epsilon (\d+\.\d+)", done.stdout)
    assert composed
    assert shuffled < float(composed[1]) < poisson + shuffled
    assert f"{poisson:.4f}. Both agree." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_leaves_no_file_and_no_service(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + SECONDS
    while not list(tmp_path.glob("dpledger-demo-*/demo.db")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to its service, too
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == EXIT_INTERRUPTED, said
    assert said == "Interrupted; the demo left nothing behind.\n"
    # The folder is removed after the service was waited for, so this shows that both are gone.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["sklearn", "dpledger_client"])
def test_what_is_not_installed_is_named_with_the_way_to_install_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # import refuses a module that is None
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as leaving:
            demo.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert leaving.value.code == demo.EXIT_MISSING
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert missing in said
    assert "pip install ./client '.[demo]'" in said


def test_a_service_that_cannot_start_is_a_failure_with_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    (tmp_path / "demo.db").mkdir()
    try:
        with pytest.raises(demo.DemoError), demo.running_service(tmp_path):
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert "database" in capfd.readouterr().err


def test_a_practice_ledger_has_what_an_officer_handles_until_it_is_ended(
    environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--incidents"],
        env=environment | {"DPLEDGER_API_KEY": "dpl_" + "x" * 43},  # of another service
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        link = next((one for one in map(str.strip, process.stdout) if one.startswith("http")), "")
        url, _, token = link.partition("/sign-in?token=")
        assert url.startswith("http://127.0.0.1:"), process.communicate()
        said = [process.stdout.readline() for _ in range(8)][-1]
        assert said.startswith("Ctrl-C"), said
        with httpx.Client(headers=bearer(token), base_url=url, trust_env=False) as api:
            found = api.get("/v1/incidents").json()["incidents"][::-1]
            kinds = [one["kind"] for one in found]
            passed = [m for one in found for m in one["detail"].get("thresholds", ())]
            held = api.get("/v1/datasets/practice/reservations").json()["reservations"]
        with browser(url) as client:
            assert client.get("/sign-in", params={"token": token}).status_code == 303
            assert client.get("/runs/gone/finish").status_code == 200
        assert kinds == ["sampling_contradicted", *["threshold"] * 3, "refusal", "overdraft"]
        assert passed == [0.5, 0.8, 0.95]
        assert [(one["run"], one["name"]) for one in held] == [("gone", "left-behind")]
    finally:
        process.send_signal(signal.SIGINT)
        _, fault = process.communicate(timeout=SECONDS)
    assert (process.returncode, fault) == (0, "")
    assert list(tmp_path.iterdir()) == []

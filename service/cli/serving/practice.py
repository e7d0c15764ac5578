"""`dpledger demo --incidents`: a temporary ledger in which incidents have happened, to practise on.

It lives as long as the command; a privacy officer opens the link and handles what is there.
"""

import secrets
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

from rich.console import Console

from service.cli.demo import EXIT_FAILED, TOKEN_FILE, DemoError, running_service
from service.cli.service_client import AwayError, Refused, Service
from service.identity.start_token import StartToken

DATASET: Final = "practice"
BUDGET: Final = {"epsilon": 3.0, "delta": 1e-5}
PART: Final = 50  # steps that are charged at once; a limit with less left refuses them
PARTS_MAX: Final = 1000  # the limit holds fewer
OVER: Final = 500  # steps that are recorded without asking, when nothing is left
_POISSON: Final = {"kind": "poisson", "sampling_probability": 0.01}
_SHUFFLE: Final = {
    "kind": "shuffle", "batch_size": 250, "steps_per_pass": 100, "reshuffle": "each_pass",
}  # fmt: skip
_FINDING: Final = {
    "kind": "sampling", "branch": "main", "from_step": 0, "status": "contradicted",
    "declared": _POISSON, "recorded": _SHUFFLE,
    "seen": {"loader": "torch.utils.data.DataLoader", "batch_size": 250, "drop_last": False},
    "reason": "The loader shuffles and goes through all records, pass by pass.",
}  # fmt: skip
_READY: Final = """\
A ledger to practise on is ready; nothing in it is real. Open
  {link}

Its dataset [bold]practice[/bold] has
  1. steady: its steps passed 50, 80 and 95 % of the limit, and then one was refused;
  2. careless: it recorded steps beyond the limit without asking, an overdraft;
  3. shuffled: its code draws batches in another way than it declared;
  4. gone: its trainer stopped, and still reserves steps.

Ctrl-C ends the service and removes the ledger."""

_out = Console()
_err = Console(stderr=True)


def _event(first_step: int, steps: int) -> dict[str, Any]:
    mechanism = {"kind": "gaussian", "noise_multiplier": 1.1}
    return {
        "first_step": first_step, "steps": steps, "mechanism": mechanism, "sampling": _POISSON,
    }  # fmt: skip


def fill(service: Service) -> None:
    """Make every kind of incident that an officer handles first.

    Raises:
        DemoError: the limit never refused a step.
        Refused: the service does not take something, and says why.
    """
    service.post(
        "/v1/datasets",
        {
            "name": DATASET,
            "dataset_size": 25_000,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "patient",
            "budget": BUDGET,
        },
    )
    for run in ("steady", "careless", "shuffled", "gone"):
        writer = secrets.token_urlsafe(24)
        service.post("/v1/runs", {"name": run, "dataset": DATASET, "writer": writer})
    _append(service, "shuffled", 0, 2 * PART)
    service.post("/v1/runs/shuffled/findings", _FINDING)
    _append(service, "gone", 0, PART)
    asked = {"name": "left-behind", "event": _event(PART, PART // 2), "ttl_seconds": 7 * 86_400}
    service.post("/v1/runs/gone/reservations", asked)
    _charge_until_refused(service)
    _append(service, "careless", 0, OVER, mode="record")


def _append(service: Service, run: str, first: int, steps: int, mode: str = "charge") -> None:
    service.post(f"/v1/runs/{run}/events", {"events": [_event(first, steps)], "mode": mode})


def _charge_until_refused(service: Service) -> None:
    for part in range(PARTS_MAX):
        try:
            _append(service, "steady", PART * part, PART)
        except Refused as refusal:
            if refusal.status != 409:
                raise
            return
    raise DemoError("The limit of the practice ledger refused no step.")


def _practise(ended: Event) -> int:
    with TemporaryDirectory(prefix="dpledger-practice-") as folder:
        try:
            with running_service(Path(folder)) as url:
                token = StartToken.load_or_create(Path(folder) / TOKEN_FILE).text
                fill(Service(url, key=token))
                link = f"{url}/sign-in?token={token}"
                _out.print(_READY.format(link=link), highlight=False, soft_wrap=True)
                ended.wait()
        except (DemoError, Refused, AwayError) as error:
            _err.print(str(error), markup=False, highlight=False, soft_wrap=True)
            return EXIT_FAILED
    return 0


def main() -> None:
    """Serve a practice ledger until the command is asked to stop."""
    ended = Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: ended.set())
    raise SystemExit(_practise(ended))

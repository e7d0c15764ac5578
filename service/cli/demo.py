"""`dpledger demo`: train a real classifier twice against a real service, and compare the epsilons.

The same DP-SGD with the same noise runs once with Poisson sampling and once with shuffled batches;
every optimizer step is told to a service that lives as long as the demo.
"""

import http.client
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import accounting
from accounting.events import NeighboringRelation
from accounting.rounding import up_to_places
from service.cli import EXIT_INTERRUPTED
from service.identity.start_token import StartToken
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import accepted_statuses
from service.settings import START_TOKEN_SUFFIX

if TYPE_CHECKING:
    from dpledger_client import Client

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

DATASET: Final = "digits"
TRAIN_SIZE: Final = 1440  # images; the other 357 measure accuracy and are not protected
CLASSES: Final = 10
PIXEL_MAX: Final = 16.0  # of the data's format, so that scaling by it reveals nothing
BATCH_SIZE: Final = 96  # expected, for Poisson
_PASSES: Final = 40
STEPS_PER_PASS: Final = TRAIN_SIZE // BATCH_SIZE
_STEPS: Final = _PASSES * STEPS_PER_PASS
_NOISE_MULTIPLIER: Final = 2.0
MAX_GRAD_NORM: Final = 1.0
_LEARNING_RATE: Final = 2.0
_DELTA: Final = 1e-5
SEED: Final = 20  # the demo shows the same numbers every time; a real training must not fix it

READY_SECONDS: Final = 30.0  # to migrate and answer, on a slow machine
_STOP_SECONDS: Final = 10.0
DATABASE_FILE: Final = "demo.db"
TOKEN_FILE: Final = DATABASE_FILE + START_TOKEN_SUFFIX  # which signs in at the service
_PLACES: Final = 4  # of an epsilon; rounded up
LOG_LINES: Final = 20  # shown of a service that failed
_AGREEMENT: Final = 1e-9  # relative; same code and ledger, but two processes may sum differently

EXIT_FAILED: Final = 1
EXIT_MISSING: Final = 2

WHY: Final = (
    "Both runs took the same {steps} steps with the same noise. Poisson sampling hides which "
    "records each step used, so every step is amplified by the sampling rate 1/{rate}. A shuffled "
    "loader shows every record exactly once a pass, so each of the {passes} passes costs as much "
    "as one full Gaussian step: the Poisson figure does not apply to shuffling."
)

_out = Console()
_err = Console(stderr=True)


class DemoError(Exception):
    """The demo cannot go on; its text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Handwritten digits, 8x8 pixels in [0, 1] and a constant 1 for the intercept."""

    train_images: Floats  # (TRAIN_SIZE, 65)
    train_labels: Indices
    test_images: Floats
    test_labels: Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScheme:
    """A way to choose the records of each step, and how the ledger is told about it."""

    run: str
    title: str
    sampling: dict[str, Any]
    batches: Callable[[np.random.Generator], Iterator[Indices]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a training reached and spent."""

    scheme: DemoScheme
    accuracy: float  # on the test images
    epsilon: float  # nats, upper, at DELTA


def poisson_batches(rng: np.random.Generator) -> Iterator[Indices]:
    """Each record joins each step independently."""
    for _ in range(_STEPS):
        yield np.flatnonzero(rng.random(TRAIN_SIZE) < BATCH_SIZE / TRAIN_SIZE)


def shuffled_batches(rng: np.random.Generator) -> Iterator[Indices]:
    """A fresh order each pass, cut into batches: what a data loader's shuffle=True does."""
    for _ in range(_PASSES):
        yield from rng.permutation(TRAIN_SIZE).reshape(STEPS_PER_PASS, BATCH_SIZE)


def load_digits() -> Digits:
    """The data set that scikit-learn carries with it, split in a fixed way."""
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    images = np.hstack([pixels / PIXEL_MAX, np.ones((len(pixels), 1))])
    order = np.random.default_rng(SEED).permutation(len(images))
    train, test = order[:TRAIN_SIZE], order[TRAIN_SIZE:]
    return Digits(
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )


def noisy_gradient(
    weights: Floats, images: Floats, labels: Indices, rng: np.random.Generator
) -> Floats:
    """The sum of clipped per-example gradients plus noise, over the expected batch size.

    numpy's generator is good enough to show the accounting. It is not cryptographic: who protects
    real records draws the noise from one that is.
    """
    logits = images @ weights
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    residuals = scores / scores.sum(axis=1, keepdims=True)
    residuals[np.arange(len(labels)), labels] -= 1
    # An example's gradient is the outer product of its image and residual, so its norm is the
    # product of theirs and clipping the residual clips the gradient.
    norms = np.linalg.norm(images, axis=1) * np.linalg.norm(residuals, axis=1)
    factors = np.minimum(1.0, MAX_GRAD_NORM / np.maximum(norms, 1e-12))
    total = images.T @ (residuals * factors[:, None])
    noise = rng.normal(0.0, _NOISE_MULTIPLIER * MAX_GRAD_NORM, size=weights.shape)
    # The realised batch size is private under Poisson sampling; the expected one is a constant.
    return np.asarray((total + noise) / BATCH_SIZE)


def train(
    client: "Client", scheme: DemoScheme, digits: Digits, progress: Progress, folder: Path
) -> Outcome:
    """DP-SGD on softmax regression; every optimizer step goes into the ledger."""
    from dpledger_client import gaussian

    rng = np.random.default_rng(SEED)
    weights = np.zeros((digits.train_images.shape[1], CLASSES))
    task = progress.add_task(scheme.title, total=_STEPS, epsilon=_describe_epsilon(0.0))
    with client.start_run(
        scheme.run,
        DATASET,
        mode="observe",  # the dataset has no budget, so nothing needs to be asked for
        mechanism=gaussian(noise_multiplier=_NOISE_MULTIPLIER),
        sampling=scheme.sampling,
        delta=_DELTA,
        spool=folder,
        flush_steps=STEPS_PER_PASS,
    ) as run:
        for batch in scheme.batches(rng):
            run.step()  # counted before it is taken
            images, labels = digits.train_images[batch], digits.train_labels[batch]
            weights -= _LEARNING_RATE * noisy_gradient(weights, images, labels, rng)
            progress.update(task, advance=1, epsilon=_describe_epsilon(run.epsilon or 0.0))
        guarantee = run.guarantee()
        progress.update(task, epsilon=_describe_epsilon(guarantee["epsilon"]))
    if guarantee["steps"] != _STEPS:
        raise DemoError(f"{scheme.run}: {_STEPS} steps ran and {guarantee['steps']} were recorded.")
    guesses = (digits.test_images @ weights).argmax(axis=1)
    accuracy = float(np.mean(guesses == digits.test_labels))
    return Outcome(scheme=scheme, accuracy=accuracy, epsilon=guarantee["epsilon"])


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running_service(folder: Path) -> Iterator[str]:
    """A service on a SQLite file in the folder, as `dpledger serve` starts it; its address."""
    port, log = free_port(), folder / "service.log"
    command = [sys.executable, "-m", "service.cli.main", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--database", f"sqlite:///{folder / DATABASE_FILE}"]
    # The demo's service must not take the keys or limits of one that the caller operates.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DPLEDGER_")}
    process = None
    try:
        with log.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 (our own module, fixed arguments)
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops the service
            )
        _wait_until_ready(process, port)
        yield f"http://127.0.0.1:{port}"
    except Exception:
        _show_log(log)
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave it running
        if process is not None:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"The service stopped with exit code {process.returncode}.")
        # http.client, because urllib would ask a proxy named in the environment.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(0.05)
    raise DemoError(f"The service was not ready within {READY_SECONDS:g} seconds.")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _show_log(log: Path) -> None:
    if log.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        _err.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def recompute_epsilon(document: dict[str, Any]) -> float | None:
    """Epsilon from a ledger document alone: no service, no database; nats, upper."""
    ledger = LedgerDocument.model_validate(document)
    return accounting.guarantee(
        ledger.counts(),
        relation=NeighboringRelation(ledger.neighboring_relation),
        delta=_DELTA,
        accept=accepted_statuses(ledger.accept),
    ).epsilon


def _describe_epsilon(epsilon: float) -> str:
    return str(up_to_places(epsilon, _PLACES))


def show(outcomes: list[Outcome], composed: float) -> None:
    """The table, and why its rows differ."""
    table = Table("sampling", title=f"{_STEPS} steps, noise multiplier {_NOISE_MULTIPLIER:g}")
    table.add_column("test accuracy", justify="right")
    table.add_column(f"epsilon (upper, delta {_DELTA:g})", justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.scheme.title, f"{outcome.accuracy:.1%}", _describe_epsilon(outcome.epsilon)
        )
    _out.print()
    _out.print(table)
    _out.print(
        WHY.format(steps=_STEPS, rate=STEPS_PER_PASS, passes=_PASSES), highlight=False, end="\n\n"
    )
    _out.print(
        "Both runs used the same records: the dataset has spent epsilon "
        f"{_describe_epsilon(composed)}.",
        highlight=False,
    )


def _demonstrate(url: str, digits: Digits, folder: Path) -> None:
    import httpx
    from dpledger_client import Client, poisson, shuffle

    rate = BATCH_SIZE / TRAIN_SIZE
    schemes = [
        DemoScheme(
            run="poisson",
            title="Poisson",
            sampling=poisson(sampling_probability=rate),
            batches=poisson_batches,
        ),
        DemoScheme(
            run="shuffled",
            title="shuffled",
            sampling=shuffle(batch_size=BATCH_SIZE, steps_per_pass=STEPS_PER_PASS),
            batches=shuffled_batches,
        ),
    ]
    token = StartToken.load_or_create(folder / TOKEN_FILE).text
    # A transport of our own, because httpx's would ask a proxy named in the environment.
    with Client(url, token, transport=httpx.HTTPTransport()) as client, _progress() as progress:
        client.create_dataset(
            DATASET,
            dataset_size=TRAIN_SIZE,
            # A record against a blank one: the relation under which both samplings have a bound.
            neighboring_relation="replace_special",
            privacy_unit="one image",
        )
        outcomes = [train(client, scheme, digits, progress, folder) for scheme in schemes]
        composed = client.dataset_guarantee(DATASET, delta=_DELTA)["epsilon"]
        ledger = client.ledger(schemes[0].run)
    show(outcomes, composed)
    told, found = outcomes[0].epsilon, recompute_epsilon(ledger)
    if found is None or not math.isclose(told, found, rel_tol=_AGREEMENT):
        raise DemoError(f"The service said epsilon {told!r} and the ledger gives {found!r}.")
    _out.print(
        "Recomputed offline from the Poisson run's ledger document: "
        f"{_describe_epsilon(found)}. Both agree.",
        highlight=False,
    )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epsilon {task.fields[epsilon]:>7}"),
        console=_out,
    )


def _leave(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _run() -> int:
    try:
        import dpledger_client

        digits = load_digits()
    except ImportError as error:
        _err.print(
            f"dpledger demo needs {error.name}, which is not installed. In the repository: "
            "pip install ./client '.[demo]'",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        return EXIT_MISSING
    with TemporaryDirectory(prefix="dpledger-demo-") as folder:
        try:
            with running_service(Path(folder)) as url:
                _demonstrate(url, digits, Path(folder))
        except (DemoError, dpledger_client.DPLedgerError) as error:
            _err.print(str(error), markup=False, highlight=False, soft_wrap=True)
            return EXIT_FAILED
    return 0


def main() -> None:
    """Run the demo and leave: 0 done, 1 failed, 2 something is not installed, 130 interrupted."""
    # Asked to stop in any way, it first stops its service and removes its files.
    signal.signal(signal.SIGTERM, _leave)
    try:
        code = _run()
    except KeyboardInterrupt:
        _err.print("Interrupted; the demo left nothing behind.", highlight=False)
        code = EXIT_INTERRUPTED
    raise SystemExit(code)

"""Six weeks of a hospital's ledger, told day by day: what the pictures of the pages show.

Everything goes through the service's own doors, while its clock says what the story says, so that
the pictures are the same whenever they are taken.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from unittest.mock import patch

import httpx

from service import clock
from tests.browser.story import noisy, post
from tests.service.samples import SAMPLING, Json, event

NOW: Final = datetime(2026, 6, 15, 14, 20, tzinfo=UTC)
DAYS: Final = 42
DELTA: Final = 1e-5  # the delta of every limit
SHUFFLED: Final[Json] = {
    "kind": "shuffle",
    "batch_size": 240,
    "reshuffle": "each_pass",
    "steps_per_pass": 50,
}


def poisson(size: int) -> Json:
    """Batches of so many records on average."""
    return {"kind": "poisson", "expected_batch_size": size}


@dataclass
class Clock:
    """What the service is told of the time."""

    moment: datetime = NOW - timedelta(days=DAYS)

    def __call__(self) -> datetime:
        """The present, in the story."""
        return self.moment

    def turn(self, day: float, minutes: float = 0) -> None:
        """Go on to a day of the story, and so many minutes."""
        later = NOW - timedelta(days=DAYS - day) + timedelta(minutes=minutes)
        self.moment = max(self.moment, later)


@contextmanager
def told_by(teller: Clock) -> Iterator[None]:
    """Every part of the service that asks for the time asks this clock."""
    present = clock.now
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("service.") and getattr(module, "now", None) is present:
                stack.enter_context(patch.object(module, "now", teller))
        yield


@dataclass
class Job:
    """A run that trains on some days."""

    name: str
    dataset: str
    begins: int  # a day
    days: int
    steps: int  # a day
    noises: tuple[float, ...]  # one after the other, day by day
    sampling: Json
    ends: str | None = "finished"
    labels: Json | None = None
    next_step: int = 0

    def happens(self, api: httpx.Client, day: int) -> None:
        """What it does on a day, if anything."""
        if day == self.begins:
            self.registered(api)
        if self.begins <= day < self.begins + self.days:
            self.trains(api, self.noises[(day - self.begins) % len(self.noises)], self.steps)
        if day == self.begins + self.days and self.ends:
            post(api, f"/v1/runs/{self.name}:finish", {"state": self.ends})

    def registered(self, api: httpx.Client) -> None:
        """It is about to start."""
        new = {
            "name": self.name,
            "writer": f"writer-of-the-run-{self.name}",
            "dataset": self.dataset,
        }
        post(api, "/v1/runs", new | {"delta": DELTA, "labels": self.labels or {}})

    def trains(self, api: httpx.Client, noise: float, steps: int) -> None:
        """Some steps are recorded."""
        one = event(self.next_step, steps, mechanism=noisy(noise), sampling=self.sampling)
        post(api, f"/v1/runs/{self.name}/events", {"events": [one]})
        self.next_step += steps


SCANS, VISITS, CLAIMS = "chest-scans", "visits", "claims"
JOBS: Final = (
    ("cnn-baseline", SCANS, 3, 6, 700, (1.3, 1.4), poisson(256), "finished", "resnet-18"),
    ("cnn-wide", SCANS, 12, 7, 500, (1.2, 1.1), poisson(256), "finished", "resnet-50"),
    ("segmenter", "chest-scans-cleaned", 24, 7, 420, (1.5, 1.3), poisson(192), "finished", "unet"),
    ("cnn-augmented", SCANS, 35, 7, 360, (1.6, 1.4, 1.2), poisson(256), None, "resnet-50"),
    ("readmission", VISITS, 14, 9, 130, (1.8, 1.6), poisson(128), "finished", "lstm"),
    ("readmission-2", VISITS, 33, 4, 850, (1.5,), poisson(128), "aborted", "lstm"),
    ("fraud", CLAIMS, 6, 9, 900, (1.1, 1.3), poisson(512), "finished", "mlp"),
    ("fraud-wide", CLAIMS, 27, 15, 240, (1.4, 1.2), poisson(512), None, "mlp"),
    ("letters-lm", "letters", 30, 12, 150, (0.8,), poisson(2048), None, "gpt-2 small"),
    ("speaker-id", "voices", 18, 4, 50, (6.0, 7.0), SHUFFLED, "finished", "x-vector"),
)  # fmt: skip


def jobs() -> list[Job]:
    """Everybody who trains, before they do."""
    return [
        Job(name, dataset, begins, days, steps, noises, sampling, ends, {"model": model})
        for name, dataset, begins, days, steps, noises, sampling, ends, model in JOBS
    ]


def dataset(
    api: httpx.Client, name: str, size: int, limit: float | None, unit: str = "patient", **of: str
) -> None:
    """A dataset, with or without a limit."""
    budget = {} if limit is None else {"budget": {"epsilon": limit, "delta": DELTA}}
    new = {"name": name, "dataset_size": size, "privacy_unit": unit}
    post(api, "/v1/datasets", new | {"neighboring_relation": "add_or_remove_one"} | budget | of)


def began(api: httpx.Client) -> None:
    """What is there on the first day."""
    dataset(api, SCANS, 60_000, 3.0)
    dataset(api, VISITS, 25_000, 1.0)
    dataset(api, CLAIMS, 180_000, 1.5, "member")
    dataset(api, "letters", 1_200_000, None, "author")
    dataset(api, "voices", 12_000, 8.0, "speaker", neighboring_relation="replace_special")


def derived(api: httpx.Client) -> None:
    """Data that was made from data."""
    for name, parent, size in (
        ("chest-scans-cleaned", SCANS, 52_400),
        ("chest-scans-2025", "chest-scans-cleaned", 17_800),
    ):
        post(
            api,
            "/v1/datasets",
            {
                "name": name, "dataset_size": size, "privacy_unit": "patient",
                "neighboring_relation": "add_or_remove_one", "parents": [parent],
                "rows_per_parent_record": "at_most_one",
            },
        )  # fmt: skip


def raised(api: httpx.Client) -> None:
    """An officer gives a dataset more."""
    change = {"reason": "The data board agreed on 25 May, minute 14.",
              "budget": {"epsilon": 2.5, "delta": DELTA}}  # fmt: skip
    answer = api.patch(f"/v1/datasets/{CLAIMS}", json=change, headers={"If-Match": '"1"'})
    assert answer.is_success, answer.text


def contradicted(api: httpx.Client) -> None:
    """What was read of a loader is not what was said."""
    post(
        api,
        "/v1/runs/speaker-id/findings",
        SAMPLING
        | {"status": "contradicted", "declared": poisson(240), "recorded": SHUFFLED,
           "reason": "The loader draws without replacement, pass by pass."},
    )  # fmt: skip


def frozen(api: httpx.Client) -> None:
    """An officer stops everything on a dataset."""
    change = {"reason": "The batches of speaker-id are looked into.", "frozen": True}
    answer = api.patch("/v1/datasets/voices", json=change, headers={"If-Match": '"1"'})
    assert answer.is_success, answer.text


def refused(api: httpx.Client) -> None:
    """More is asked for than is left."""
    Job("vit-large", SCANS, 29, 1, 0, (0.7,), poisson(512)).registered(api)
    one = event(0, 20_000, mechanism=noisy(0.7), sampling=poisson(512))
    answer = api.post("/v1/runs/vit-large/events", json={"mode": "charge", "events": [one]})
    assert answer.status_code == httpx.codes.CONFLICT, answer.text
    post(api, "/v1/runs/vit-large:finish", {"state": "aborted"})


def leased(api: httpx.Client, name: str, of: Job, steps: int, seconds: int) -> None:
    """Steps are admitted ahead of their running."""
    planned = {"steps": steps, "mechanism": noisy(1.2), "sampling": of.sampling}
    body = {"name": name, "event": planned, "ttl_seconds": seconds}
    post(api, f"/v1/runs/{of.name}/reservations", body)


def today(officer: httpx.Client, trainer: httpx.Client, teller: Clock, by: dict[str, Job]) -> None:
    """The last hour: something is new, and something trains while one looks."""
    delta = officer.get(f"/v1/datasets/{CLAIMS}").json()["budget"]["delta"]
    asked = {"reason": "A larger model", "budget": {"epsilon": 6.0, "delta": delta}}
    answer = trainer.post(f"/v1/datasets/{CLAIMS}/requests", json=asked)
    assert answer.status_code == 201, answer.text
    teller.turn(DAYS, -70)
    dataset(officer, "dermatology", 8_400, 2.0)
    teller.turn(DAYS, -65)
    frozen(officer)
    teller.turn(DAYS, -55)
    Job("triage-bert", CLAIMS, DAYS, 1, 0, (1.0,), poisson(512)).registered(trainer)
    teller.turn(DAYS, -20)
    live = by["cnn-augmented"]
    leased(trainer, "cnn-augmented-7", live, 600, 7200)
    for minutes in (-15, -8, -0.6):
        teller.turn(DAYS, minutes)
        live.trains(trainer, 1.2, 60)
    teller.turn(DAYS)


def told(officer: httpx.Client, trainer: httpx.Client, teller: Clock) -> None:
    """Tell it all, in the order of time."""
    everybody = jobs()
    by = {job.name: job for job in everybody}
    special = {10: derived, 21: raised, 29: refused}
    began(officer)
    for day in range(1, DAYS):
        teller.turn(day)
        if day in special:
            special[day](officer)
        for number, job in enumerate(everybody):
            teller.turn(day, 13 * number)
            job.happens(trainer, day)
        if day == by["speaker-id"].begins:
            contradicted(trainer)
        if day == 37:
            leased(trainer, "fraud-wide-lost", by["fraud-wide"], 400, 3600)
    today(officer, trainer, teller, by)

"""A disk without room, or that takes no writes: 503 while it lasts, and nothing is lost."""

import json
import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from benchmarks.fault_disk import Disk, Limited, failing_disk, small_disk
from service.storage.engine import connect, snapshot
from service.storage.tables import datasets
from tests.service.faults.answers import (
    begin,
    insisted,
    record,
    require_exactly,
    require_taken,
    require_unavailable,
)
from tests.service.faults.conftest import serving
from tests.service.samples import event, run

STEPS = 5
TRIES = 3000  # by which a disk of a few megabytes is full
ROOM = 512 * 1024  # bytes: enough for a probe of a row, and for small appends
LINES = 9000  # which are more
SMALL = 4  # appends of a step
GROWN_MAX = 7 * 1024 * 1024  # of a ledger of some hundred kilobytes, with what a probe wrote
REFUSALS = 4  # in a row; one alone may make room in SQLite's log


def fill_with_runs(api: httpx.Client) -> None:
    """Register runs until the file itself would have to grow, which is refused again and again."""
    refused = 0
    for number in range(TRIES):
        answer = api.post("/v1/runs", json=run(f"run-{number}", labels={"text": "x" * 200}))
        if answer.status_code == 201:
            refused = 0
            continue
        require_unavailable(answer)
        refused += 1
        if refused == REFUSALS:
            return
    raise AssertionError("The disk was never full.")


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """A disk to fill; the report of the tests says how it is done here."""
    with small_disk(tmp_path / "disk", mebibytes=8) as found:
        request.node.user_properties.append(("disk", found.kind))
        yield found


def until_refused(api: httpx.Client, number: int) -> int:
    """Send steps until one is refused; how many are acknowledged then."""
    for tried in range(number, number + TRIES):
        answer = record(api, tried)
        if answer.status_code != 201:
            require_unavailable(answer)
            return tried
    raise AssertionError("The disk was never full.")


@pytest.mark.usefixtures("probes")
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(disk: Disk) -> None:
    with serving(f"sqlite:///{disk.folder / 'ledger.db'}") as api:
        begin(api, STEPS)
        disk.fail()
        try:
            acknowledged = until_refused(api, STEPS)
            for _ in range(3):
                require_unavailable(api.get("/readyz"))
            require_exactly(api, acknowledged)
            fill_with_runs(api)
            require_exactly(api, acknowledged)
        finally:
            disk.mend()
        assert insisted(partial(api.get, "/readyz")).status_code == 200
        require_taken(api, acknowledged)
        assert insisted(partial(record, api, acknowledged)).status_code == 200  # counted once
        require_exactly(api, acknowledged + 1)
    with serving(f"sqlite:///{disk.folder / 'ledger.db'}") as api:
        require_exactly(api, acknowledged + 1)


@pytest.mark.usefixtures("probes")
def test_a_service_with_room_for_a_probe_but_not_for_an_append_is_not_ready(
    tmp_path: Path,
) -> None:
    with (
        small_disk(tmp_path / "disk", mebibytes=8) as disk,
        serving(f"sqlite:///{disk.folder / 'ledger.db'}") as api,
    ):
        begin(api, STEPS)
        disk.fail(room=ROOM)
        try:
            require_unavailable(record_lines(api, STEPS, LINES))
            for number in range(STEPS, STEPS + SMALL):  # less is written, again and again
                require_taken(api, number)
                require_unavailable(api.get("/readyz"))
            require_exactly(api, STEPS + SMALL)
            require_unavailable(record_lines(api, STEPS + SMALL, LINES))
        finally:
            disk.mend()
        assert insisted(partial(api.get, "/readyz")).status_code == 200
        assert sum(one.stat().st_size for one in disk.folder.iterdir()) < GROWN_MAX
        assert insisted(partial(record, api, STEPS + SMALL)).status_code == 201


def record_lines(api: httpx.Client, first: int, count: int) -> httpx.Response:
    """So many steps at once, each of another noise than the one before: an entry each."""
    noises = ({"kind": "gaussian", "noise_multiplier": noise} for noise in cycle((1.1, 1.2)))
    lines = (
        json.dumps(event(first + at, 1, mechanism=noise))
        for at, noise in zip(range(count), noises, strict=False)
    )
    kind = {"content-type": "application/x-ndjson"}
    return api.post("/v1/runs/run/events", content="\n".join(lines), headers=kind)


def test_a_disk_that_the_log_of_sqlite_fills_refuses_until_the_log_may_shrink(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        url = f"sqlite:///{disk.folder / 'ledger.db'}"
        with serving(url) as api:
            begin(api, STEPS)
            engine = connect(url)
            with snapshot(engine) as reader:  # while somebody reads the log only grows
                assert reader.execute(datasets.select()).all()
                if isinstance(disk, Limited):
                    disk.fail()
                acknowledged = until_refused(api, STEPS)
                require_exactly(api, acknowledged)
            engine.dispose()
            if isinstance(disk, Limited):
                disk.mend()
            # The first attempt finds the log full still, and has it moved into the file.
            assert 201 in (record(api, acknowledged).status_code for _ in range(2))
            require_exactly(api, acknowledged + 1)


def test_a_disk_that_takes_no_writes_is_still_read(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with failing_disk(tmp_path / "disk") as disk:
        request.node.user_properties.append(("disk", disk.kind))
        url = f"sqlite:///{disk.folder / 'ledger.db'}"
        with serving(url) as api:
            begin(api, STEPS)
            disk.fail()
            for _ in range(3):
                require_unavailable(record(api, STEPS))
            require_exactly(api, STEPS)
        disk.mend()
        with serving(url) as api:
            require_taken(api, STEPS)
            require_exactly(api, STEPS + 1)


def test_where_nothing_may_be_mounted_writes_fail_all_the_same(file: Path) -> None:
    for full in (True, False):
        url = f"sqlite:///{file.with_suffix(f'.{full}')}"
        with serving(url) as api:
            begin(api, STEPS)
            disk = Limited(file.parent, os.getpid(), full=full)
            disk.fail()
            try:
                acknowledged = until_refused(api, STEPS)
                require_exactly(api, acknowledged)
            finally:
                disk.mend()
            require_taken(api, acknowledged)
            require_exactly(api, acknowledged + 1)

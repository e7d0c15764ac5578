"""What a trainer tells of itself, and what never leaves its process."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client, Run, SamplingContradicted, loaders
from dpledger_client.training import findings

from tests.client.fake_service import FakeService, answering, problem
from tests.client.loader_classes import batches, distributed, loader, random
from tests.client.samples import FAIL, LOUD, QUIET, SAMPLING, lines, start, step

SIZE = 60_000  # as of the loaders
POISSON = dp.poisson(expected_batch_size=256)
# Of a true Poisson sampling of 1 % of 1000 records, and of a shuffle.
LIKELY = [10, 8, 12, 9, 11, 10, 13, 7, 10, 12]


def shuffling() -> Any:
    """A DataLoader(shuffle=True) of PyTorch, by its names and settings."""
    return loader(batches(random()))


def watched(client: Client, **options: Any) -> Run:
    usual = {"dataset_size": SIZE, "mechanism": QUIET, "sampling": POISSON}
    return start(client, **{**usual, **options})


def told(service: FakeService, kind: str) -> list[dict[str, Any]]:
    return [each for each in service.findings if each["kind"] == kind]


def leaving(service: FakeService, run: Run) -> Iterator[str]:
    """Everything that left the process: requests, and the spool."""
    for request in service.requests:
        yield f"{request.url} {request.content.decode()}"
    yield Path(str(run.spool)).read_text()


def test_a_shuffle_declared_as_poisson_is_caught_warned_of_and_recorded_as_a_shuffle(
    service: FakeService, client: Client
) -> None:
    run = watched(client)
    run.step()
    with pytest.warns(SamplingContradicted, match="recorded as shuffle") as warned:
        finding = run.watch(shuffling())
    assert warned[0].filename == __file__
    assert finding.status == "contradicted"
    run.step(steps=3)
    run.finish()
    assert [content[1]["kind"] for content in service.contents()] == ["poisson", *["shuffle"] * 3]
    [found] = told(service, "sampling")
    assert (found["from_step"], found["status"], found["branch"]) == (1, "contradicted", "main")
    assert found["declared"] == POISSON
    assert found["recorded"] == finding.sampling == run.sampling
    assert set(found) == {
        "kind", "branch", "from_step", "status", "declared", "recorded", "seen", "reason",
    }  # fmt: skip


def test_a_contradiction_that_is_an_error_is_recorded_all_the_same(
    service: FakeService, client: Client
) -> None:
    run = watched(client)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SamplingContradicted):
            run.watch(shuffling())
    run.step()
    run.finish()
    assert service.contents()[0][1]["kind"] == "shuffle"
    assert len(told(service, "sampling")) == 1


def test_a_loader_says_what_nobody_declared(service: FakeService, client: Client) -> None:
    run = watched(client, sampling=None)
    finding = run.watch(shuffling())
    assert finding.status == "detected"
    run.step()
    run.finish()
    assert service.contents()[0][1] == finding.sampling
    assert "declared" not in told(service, "sampling")[0]


def test_a_loader_that_cannot_tell_leaves_the_declaration(
    service: FakeService, client: Client
) -> None:
    run = watched(client)
    finding = run.watch(object())
    assert (finding.status, run.sampling) == ("declared", POISSON)
    run.step()
    run.finish()
    assert service.contents()[0][1] == POISSON


def test_no_loader_is_judged_without_the_size_of_the_dataset(
    service: FakeService, client: Client
) -> None:
    service.away = True
    run = start(client, mode="observe", mechanism=QUIET, sampling=POISSON)
    with pytest.raises(ValueError, match="dataset_size"):
        run.watch(shuffling())


def test_ranks_that_each_go_through_all_the_data_are_refused(client: Client) -> None:
    run = watched(client, world_size=2)
    with pytest.raises(ValueError, match="DistributedSampler"):
        run.watch(shuffling())
    assert run.sampling == POISSON


def test_how_many_records_the_loader_has_is_told_here_only(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client, dataset_size=SIZE + 1, mechanism=QUIET)
    run.watch(shuffling())
    run.flush()
    assert "as many records" in caplog.text
    assert all("as many records" not in text for text in leaving(service, run))


def test_a_finding_is_cut_to_what_the_service_takes() -> None:
    long = loaders.Finding("detected", POISSON, None, {"loader": "a\n" + "x" * 300}, "y" * 600)
    body = findings.of_sampling(long, from_step=0)
    assert body["seen"]["loader"] == "x" * findings.VALUE_MAX
    assert body["reason"] == "y" * findings.TEXT_MAX


def test_only_rank_0_tells_of_the_loader(service: FakeService, client: Client) -> None:
    run = watched(client, rank=1, world_size=2)
    with pytest.warns(SamplingContradicted):
        run.watch(loader(batches(distributed(SIZE, ranks=2))))
    assert run.sampling is not None
    assert run.sampling["kind"] == "shuffle"
    assert told(service, "sampling") == []


def test_a_refused_finding_holds_up_no_step(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    run = watched(client, sampling=None)
    run.watch(shuffling())
    run.step()
    service.faulty = "/findings"
    service.faults.append(answering(problem("invalid-request", 422)))
    assert run.finish() is not None
    assert service.recorded == 1
    assert "a finding was refused" in caplog.text


def test_a_finding_that_could_not_be_sent_is_sent_later(
    service: FakeService, client: Client
) -> None:
    run = watched(client, sampling=None)
    run.watch(shuffling())
    service.faulty = "/findings"
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        run.flush()
    run.flush()
    assert len(told(service, "sampling")) == 1


def test_a_finding_waits_in_the_spool_for_the_service(service: FakeService, client: Client) -> None:
    run = watched(client, sampling=None)
    run.watch(shuffling())
    run.step()
    service.away = True
    run.finish()
    assert any("tell" in line for line in lines(run) if isinstance(line, dict))
    service.away = False
    list(client.sync(Path(str(run.spool))))
    assert len(told(service, "sampling")) == 1


def test_sizes_that_fit_are_no_news_and_leave_in_no_form(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    for size in LIKELY:
        step(run, size=size)
    run.finish()
    sized = start(client, name="other")
    for _ in LIKELY:
        step(sized)
    sized.finish()
    assert service.findings == []
    with_sizes, without = (
        [line for line in lines(each)[1:] if "lease" not in str(line)] for each in (run, sized)
    )
    assert with_sizes == without
    assert not any("refuted" in text for text in leaving(service, run))


def equal_batches(run: Run, noises: list[dict[str, Any]]) -> None:
    """Steps of 25 records each, which ten by chance would hardly be."""
    for noise in noises:
        step(run, noise, size=25)


def refuted(client: Client, **options: Any) -> Run:
    """A run whose batches all have 25 records, where ten are expected by chance."""
    run = start(client, **options)
    with pytest.warns(SamplingContradicted, match="refute the declared sampling") as warned:
        equal_batches(run, [QUIET] * 30)
    assert len(warned) == 1
    assert "25" not in str(warned[0].message)
    assert Path(warned[0].filename).name == "samples.py"  # where the step is
    return run


def test_a_refutation_is_warned_of_once_and_told_to_nobody(
    service: FakeService, client: Client
) -> None:
    run = refuted(client)
    run.finish()
    assert service.findings == []
    assert not any("refuted" in text for text in leaving(service, run))
    assert [content[1] for content in service.contents()] == [SAMPLING] * 30


def test_a_verdict_leaves_once_when_the_trainer_opted_in(
    service: FakeService, client: Client
) -> None:
    run = refuted(client, share_batch_size_verdict=True)
    run.flush()
    assert service.findings == []  # only at the end
    run.finish()
    run.finish()
    assert service.findings == [
        {"branch": "main", "kind": "batch_sizes", "verdict": "refuted", "level": 1e-6}
    ]


def test_a_verdict_that_nothing_refuted_says_so(service: FakeService, client: Client) -> None:
    run = start(client, share_batch_size_verdict=True)
    for size in LIKELY:
        step(run, size=size)
    run.finish()
    assert [each["verdict"] for each in service.findings] == ["not_refuted"]
    start(client, name="other", share_batch_size_verdict=True).finish()
    assert len(service.findings) == 1  # where nothing was tested there is no verdict


def test_other_ranks_have_no_verdict_to_tell(service: FakeService, client: Client) -> None:
    run = start(client, rank=1, world_size=2, share_batch_size_verdict=True)
    step(run, size=10)
    run.finish()
    assert told(service, "batch_sizes") == []


def test_a_batch_that_was_refused_counts_once_when_it_comes_again(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    service.steps_max = 0
    for _ in range(50):  # 50 times the same unlikely batch
        with pytest.raises(dp.BudgetExhausted):
            step(run, size=20)
    service.steps_max = 100
    step(run, size=20)
    assert run.next_step == 1


def test_a_change_of_noise_is_no_reason_to_begin_anew(client: Client) -> None:
    run = start(client)
    with pytest.warns(SamplingContradicted):
        equal_batches(run, [QUIET, LOUD] * 15)


def test_another_sampling_is_tested_by_itself(client: Client) -> None:
    run = start(client, mechanism=QUIET)
    for _ in range(9):
        run.step(sampling=dp.fixed_size(batch_size=7), size=7)
    for size in LIKELY:
        run.step(sampling=SAMPLING, size=size)
    run.step(sampling=dp.unknown(), size=999)
    with pytest.warns(SamplingContradicted):
        run.step(sampling=dp.fixed_size(batch_size=7), size=6)


def test_a_rewind_begins_a_pass(client: Client) -> None:
    run = start(
        client,
        mechanism=QUIET,
        sampling=dp.shuffle(batch_size=300, steps_per_pass=4),
        dataset_size=1000,
    )
    run.step(size=300)
    state = run.state_dict()
    for size in (300, 300, 100, 300):
        run.step(size=size)
    run.load_state_dict(state)
    for size in (300, 300, 300, 100, 300):
        run.step(size=size)


def test_sizes_are_tested_only_where_the_size_of_the_dataset_is_known(
    service: FakeService, client: Client
) -> None:
    service.away = True
    run = start(client, mode="observe")
    with pytest.raises(ValueError, match="dataset_size"):
        step(run, size=10)
    assert run.next_step == 0


def test_a_finding_is_json(service: FakeService, client: Client) -> None:
    run = watched(client, sampling=None)
    run.watch(shuffling())
    run.finish()
    assert json.loads(json.dumps(service.findings)) == service.findings

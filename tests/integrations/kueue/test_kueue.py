"""The controller of deploy/kueue against a fake API server and a real ledger."""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import OTHER, OURS, Cluster, Controller, condition, until
from dpledger_client import Client

DEPLOYED = Path(__file__).parents[3] / "deploy" / "kueue"
PREFIX = "dpledger.example/"
LIMIT = {"epsilon": 3.0, "delta": 1e-6}
Dataset = Callable[..., str]

pytestmark = pytest.mark.usefixtures("controller")


def said(name: str, /, **changed: str | None) -> dict[str, str]:
    """The annotations of a job; None leaves one out. Epsilon 2 holds 2,668 such steps."""
    asked = {
        "dataset": name, "epsilon": "2", "delta": "1e-6", "noise-multiplier": "1.0",
        "sampling-probability": "0.005", "steps": "600",
        **{key.replace("_", "-"): value for key, value in changed.items()},
    }  # fmt: skip
    return {f"{PREFIX}{key}": value for key, value in asked.items() if value is not None}


def reservations(client: Client, dataset: str, state: str = "pending") -> list[dict[str, Any]]:
    found = client._transport.get(f"/v1/datasets/{dataset}/reservations", state=state)
    listed: list[dict[str, Any]] = found["reservations"]
    return listed


@pytest.fixture
def letters(dataset: Dataset) -> str:
    return dataset(dataset_size=60_000, budget=LIMIT)


def test_the_queue_is_open_and_only_our_checks_are_touched(cluster: Cluster) -> None:
    cluster.create_check("provisioning", "another/controller")
    cluster.submit("theirs", {}, checks=[OTHER])
    cluster.submit("both", {})
    cluster.answered("both", "Rejected", "annotation dpledger.example/")
    assert cluster.check("both", "provisioning") == OTHER
    assert cluster.workload("theirs")["status"]["admissionChecks"] == [OTHER]
    assert "finalizers" not in cluster.workload("theirs")["metadata"]
    assert "status" not in cluster.call("GET", "/admissionchecks/provisioning")
    active = cluster.call("GET", "/admissionchecks/dpledger")["status"]["conditions"]
    assert [(one["type"], one["status"]) for one in active] == [("Active", "True")]


def test_a_job_that_fits_is_ready_and_takes_what_was_reserved(
    cluster: Cluster, client: Client, letters: str, spool: Any
) -> None:
    uid = cluster.submit("fits", said(letters))
    found = cluster.answered("fits", "Ready", f"run kueue-{uid}")
    [held] = reservations(client, letters)
    assert (held["run"], held["steps"], held["expires_at"]) == (f"kueue-{uid}", 600, None)
    [update] = found["podSetUpdates"]
    assert update["name"] == "main"
    registered = update["annotations"][f"{PREFIX}run"]  # what the downward API gives the pod
    with client.start_run(None, letters, reserved=registered, resume="allow") as run:
        event = json.loads(registered)["plan"][0]
        run.step(mechanism=event["mechanism"], sampling=event["sampling"])
        assert reservations(client, letters)[0]["remaining"] == 599
        assert client.run(run.name)["on_plan"] is True
    assert client.run(run.name)["labels"] == {"kueue.workload": "team/fits"}


def test_what_does_not_fit_is_rejected_with_the_text_of_the_problem(
    cluster: Cluster, client: Client, dataset: Dataset
) -> None:
    small = dataset(dataset_size=60_000, budget={"epsilon": 0.5, "delta": 1e-6})
    cluster.submit("exhausted", said(small))
    found = cluster.answered("exhausted", "Rejected", "do not fit in the budget")
    assert f"dataset:{small}" in found["message"]
    assert found["podSetUpdates"] == []
    cluster.submit("above-its-own", said(small, epsilon="0.1", steps="100"))
    cluster.answered("above-its-own", "Rejected", "do not fit in the budget")
    cluster.submit("unknown", said("no-such-dataset"))
    cluster.answered("unknown", "Rejected", "dataset")
    assert reservations(client, small, "all") == []


def test_two_jobs_that_exceed_the_budget_together_do_not_both_start(
    cluster: Cluster, client: Client, dataset: Dataset
) -> None:
    narrow = dataset(dataset_size=60_000, budget={"epsilon": 2.0, "delta": 1e-6})
    for name in ("one", "two"):
        cluster.submit(name, said(narrow, steps="2000"))
    states = until(
        lambda: sorted(cluster.check(name)["state"] for name in ("one", "two")),
        lambda found: "Pending" not in found,
    )
    assert states == ["Ready", "Rejected"]
    assert [one["steps"] for one in reservations(client, narrow)] == [2000]


@pytest.mark.parametrize("name", ["dataset", "epsilon", "delta", "steps", "noise-multiplier"])
def test_a_missing_annotation_is_named(cluster: Cluster, letters: str, name: str) -> None:
    cluster.submit(f"without-{name}", said(letters, **{name: None}))
    cluster.answered(f"without-{name}", "Rejected", f"annotation {PREFIX}{name} is missing")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", "0"),
        ("delta", "1"),
        ("steps", "1e3"),
        ("sampling-probability", "1.5"),
        ("noise-multiplier", "nan"),
        ("plan", "[1"),
        ("plan", "{}"),
        ("plan", '[{"steps": 0}]'),
        ("run", "mine"),
    ],
)
def test_a_bad_annotation_is_named(
    cluster: Cluster, client: Client, letters: str, name: str, value: str
) -> None:
    workload = f"bad-{name}-{secrets.token_hex(4)}"
    cluster.submit(workload, said(letters, **{name: value}))
    cluster.answered(workload, "Rejected", name)
    assert reservations(client, letters, "all") == []


def test_a_plan_may_be_written_out(cluster: Cluster, client: Client, letters: str) -> None:
    noise = {"kind": "gaussian", "noise_multiplier": 30.0}
    plan = [{"mechanism": noise, "sampling": {"kind": "full"}, "steps": 3}]
    cluster.submit("planned", said(letters, steps=None, plan=json.dumps(plan)))
    cluster.answered("planned", "Ready")
    assert reservations(client, letters)[0]["steps"] == 3


def test_quota_comes_first(cluster: Cluster, client: Client, letters: str) -> None:
    cluster.submit("queued", said(letters), quota="False")
    uid = cluster.submit("after", said(letters))
    cluster.answered("after", "Ready")
    assert cluster.check("queued") == OURS
    assert [one["run"] for one in reservations(client, letters)] == [f"kueue-{uid}"]


def test_a_restart_and_repeated_events_reserve_once(
    cluster: Cluster, client: Client, controller: Controller, letters: str
) -> None:
    uid = cluster.submit("restarted", said(letters))
    cluster.answered("restarted", "Ready")
    controller.kill()
    # Kueue resets the check when it evicts; the run must be the same one at the next admission.
    cluster.patch("restarted", {"status": {"admissionChecks": [OTHER, OURS]}})
    controller.start()
    cluster.answered("restarted", "Ready")
    cluster.patch("restarted", {"status": {"admissionChecks": [OTHER, OURS]}})
    cluster.answered("restarted", "Ready")
    assert [one["run"] for one in reservations(client, letters, "all")] == [f"kueue-{uid}"]


def test_without_an_answer_no_job_starts(
    cluster: Cluster, client: Client, service: Any, letters: str
) -> None:
    service.kill()
    cluster.submit("patient", said(letters))
    cluster.answered("patient", "Pending", "dpledger gave no answer")
    service.start()
    cluster.answered("patient", "Ready")
    with Client(service.url, service.token) as again:
        assert len(reservations(again, letters)) == 1


def test_the_end_of_a_workload_returns_what_it_did_not_use(
    cluster: Cluster, client: Client, service: Any, letters: str
) -> None:
    deleted, ended = (
        cluster.submit("deleted", said(letters)),
        cluster.submit("ended", said(letters)),
    )
    for name in ("deleted", "ended"):
        cluster.answered(name, "Ready")
    service.kill()
    cluster.delete("deleted")
    until(
        lambda: cluster.workload("deleted")["metadata"], lambda found: "deletionTimestamp" in found
    )
    service.start()
    with Client(service.url, service.token) as again:
        until(lambda: cluster.exists("deleted"), lambda found: not found)
        assert again.run(f"kueue-{deleted}")["state"] == "aborted"
        assert [one["run"] for one in reservations(again, letters)] == [f"kueue-{ended}"]
        cluster.patch("ended", {"status": {"conditions": [condition("Finished")]}})
        until(lambda: reservations(again, letters), lambda found: found == [])
        assert len(reservations(again, letters, "released")) == 2
        cluster.delete("ended")
        until(lambda: cluster.exists("ended"), lambda found: not found)


def test_what_was_returned_is_not_ready_again(cluster: Cluster, service: Any, letters: str) -> None:
    uid = cluster.submit("reactivated", said(letters))
    cluster.answered("reactivated", "Ready")
    with Client(service.url, service.token) as client:
        client._transport.post(f"/v1/runs/kueue-{uid}:finish", {"state": "finished"})
    cluster.patch("reactivated", {"status": {"admissionChecks": [OURS]}})
    cluster.answered("reactivated", "Rejected", "submit the job again")


def test_the_example_fits_and_the_controller_may_do_what_it_does(
    cluster: Cluster, dataset: Dataset
) -> None:
    job = yaml.safe_load((DEPLOYED / "job.yaml").read_text())
    pods = job["spec"]["template"]
    dataset("letters", dataset_size=60_000, budget=LIMIT)
    cluster.submit("example", pods["metadata"]["annotations"])
    [update] = cluster.answered("example", "Ready")["podSetUpdates"]
    [run] = [one for one in pods["spec"]["containers"][0]["env"] if one["name"] == "DPLEDGER_RUN"]
    [key] = update["annotations"]
    assert run["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{key}']"
    cluster.delete("example")
    until(lambda: cluster.exists("example"), lambda found: not found)
    manifests = yaml.safe_load_all((DEPLOYED / "controller.yaml").read_text())
    [role] = [one for one in manifests if one["kind"] == "ClusterRole"]
    allowed = {
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ("patch", "kueue.x-k8s.io", "workloads/status") in cluster.asked
    assert cluster.asked <= allowed

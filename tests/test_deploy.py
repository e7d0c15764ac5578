"""What of the base for a cluster can be checked without one."""

import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import APIRoute
from sqlalchemy import make_url

from service.settings import Settings
from service.transparency.signing import Signer
from service.web.api import health

ROOT = Path(__file__).parents[1]
BASE = ROOT / "deploy" / "kustomize"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
Json = dict[str, Any]


def read(name: str) -> Json:
    (found,) = yaml.safe_load_all((BASE / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


KUSTOMIZATION = read("kustomization.yaml")
DEPLOYMENT: Json = read("deployment.yaml")["spec"]
POD: Json = DEPLOYMENT["template"]["spec"]
(MIGRATE,), (SERVICE,) = POD["initContainers"], POD["containers"]
BOTH = pytest.mark.parametrize("container", [MIGRATE, SERVICE], ids=["migrate", "service"])


def literals(name: str) -> dict[str, str]:
    """What a generated config map holds."""
    (found,) = [one for one in KUSTOMIZATION["configMapGenerator"] if one["name"] == name]
    return dict(line.split("=", 1) for line in found["literals"])


def environment(container: Json) -> dict[str, str]:
    """All variables of a container."""
    (source,) = container["envFrom"]
    given = {one["name"]: one["value"] for one in container["env"]}
    return literals(source["configMapRef"]["name"]) | given


def test_every_file_is_one_document_and_named_by_the_kustomization() -> None:
    there = {path.name for path in BASE.iterdir() if path.is_file()}
    assert {*KUSTOMIZATION["resources"], "kustomization.yaml"} == there
    kinds = [read(name)["kind"] for name in KUSTOMIZATION["resources"]]
    assert sorted(kinds) == [
        "Deployment", "Namespace", "NetworkPolicy", "PodDisruptionBudget", "Service",
        "ServiceAccount",
    ]  # fmt: skip


@BOTH
def test_every_variable_is_read_by_the_service_and_its_value_is_valid(container: Json) -> None:
    found = environment(container)
    fields = {name.removeprefix("DPLEDGER_").lower(): value for name, value in found.items()}
    assert set(fields) <= set(Settings.model_fields)
    settings = Settings(_env_file=None, **fields)  # type: ignore[call-arg, arg-type]
    assert make_url(settings.database_url).get_backend_name() == "postgresql"
    assert make_url(settings.database_url).password is None


@BOTH
def test_every_secret_that_is_read_is_mounted_and_made_from_a_file_that_is_not_committed(
    container: Json,
) -> None:
    volumes = {one["name"]: one.get("secret") for one in POD["volumes"]}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    made = {one["name"]: set(one["files"]) for one in KUSTOMIZATION["secretGenerator"]}
    paths = [value for name, value in environment(container).items() if name.endswith("_FILE")]
    assert paths
    for path in map(Path, paths):
        secret = mounts[str(path.parent)]
        assert f"secrets/{path.name}" in made[secret["secretName"]]
        assert secret["defaultMode"] & stat.S_IRWXO == 0
    assert "secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert not (BASE / "secrets").exists()


def test_only_the_container_that_migrates_has_the_owners_password() -> None:
    owner, service = environment(MIGRATE), environment(SERVICE)
    assert "owner_password" in owner["DPLEDGER_DATABASE_PASSWORD_FILE"]
    assert {one["name"] for one in SERVICE["volumeMounts"]} == {"secrets", "temporary"}
    roles = [make_url(one["DPLEDGER_DATABASE_URL"]).username for one in (owner, service)]
    assert roles == ["dpledger_owner", "dpledger"]


def test_compose_serves_as_a_role_that_owns_nothing_and_migrates_without_the_admin_key() -> None:
    services = COMPOSE["services"]
    database, migrate, service = (services[name] for name in ("database", "migrate", "service"))
    urls = [one["environment"]["DPLEDGER_DATABASE_URL"] for one in (migrate, service)]
    assert [make_url(url).username for url in urls] == ["dpledger_owner", "dpledger"]
    assert migrate["secrets"] == ["owner_password"]
    assert "owner_password" not in service["secrets"]
    assert database["environment"]["POSTGRES_USER"] == "dpledger_owner"
    roles = next(one for one in database["volumes"] if "initdb.d" in one)
    assert (ROOT / roles.partition(":")[0]).is_file()
    for one in (migrate, service):
        paths = [value for value in one["environment"].values() if str(value).startswith("/run/")]
        assert {Path(path).name for path in paths} == set(one["secrets"])
        assert "secrets" not in COMPOSE["x-dpledger"]


@BOTH
def test_a_container_may_do_nothing_that_it_does_not_need(container: Json) -> None:
    pod = POD["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert f"USER {pod['runAsUser']}:{pod['runAsGroup']}\n" in (ROOT / "Dockerfile").read_text()
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(
        one.get("readOnly") for one in container["volumeMounts"] if one["name"] != "temporary"
    )
    assert "memory" in container["resources"]["limits"]
    assert "memory" in container["resources"]["requests"]
    assert not re.search(r"hostPath|hostNetwork|hostPID|privileged", str(POD))


def test_no_pod_holds_a_token_of_the_cluster() -> None:
    account = read("serviceaccount.yaml")
    assert account["automountServiceAccountToken"] is False
    assert POD["automountServiceAccountToken"] is False
    assert POD["serviceAccountName"] == account["metadata"]["name"]


def test_every_probe_asks_a_path_that_needs_no_key_and_only_readiness_asks_the_database() -> None:
    paths = {route.path for route in health.router.routes if isinstance(route, APIRoute)}
    probes = {name: SERVICE[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert {one["httpGet"]["path"] for one in probes.values()} <= paths
    assert probes["readiness"]["httpGet"]["path"] == "/readyz"
    assert probes["liveness"]["httpGet"]["path"] == "/healthz"
    (port,) = SERVICE["ports"]
    assert {one["httpGet"]["port"] for one in probes.values()} == {port["name"]}
    assert port["containerPort"] == Settings.model_fields["port"].default
    assert SERVICE["args"] == ["serve", "--host", "0.0.0.0"]  # noqa: S104


def seconds(given: dict[str, Any]) -> float:
    """How long a service takes at most to end."""
    fields = Settings.model_fields
    drain = given.get("DPLEDGER_DRAIN_SECONDS", fields["drain_seconds"].default)
    shutdown = given.get("DPLEDGER_SHUTDOWN_SECONDS", fields["shutdown_seconds"].default)
    return float(drain) + float(shutdown)


def test_a_pod_is_given_the_time_to_drain_and_to_finish() -> None:
    assert seconds(environment(SERVICE)) < POD["terminationGracePeriodSeconds"]
    compose = COMPOSE["services"]["service"]
    assert seconds(compose["environment"]) < int(compose["stop_grace_period"].removesuffix("s"))
    drain = float(literals("dpledger")["DPLEDGER_DRAIN_SECONDS"])
    probe = SERVICE["readinessProbe"]
    assert drain > probe["periodSeconds"] * probe["failureThreshold"]  # it is seen to be unready


def test_one_pod_always_serves() -> None:
    assert DEPLOYMENT["replicas"] >= 2
    assert DEPLOYMENT["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert read("poddisruptionbudget.yaml")["spec"]["minAvailable"] == 1


def test_everything_that_selects_pods_selects_these() -> None:
    labels = DEPLOYMENT["template"]["metadata"]["labels"]
    spread = POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    network = read("networkpolicy.yaml")["spec"]
    assert labels
    assert [
        DEPLOYMENT["selector"]["matchLabels"],
        spread,
        read("service.yaml")["spec"]["selector"],
        read("poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"],
        network["podSelector"]["matchLabels"],
    ] == [labels] * 5
    assert network["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule.get("ports") for rule in network["ingress"] + network["egress"])


def test_the_image_is_named_once_with_the_version_of_this_tree() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert KUSTOMIZATION["images"] == [{"name": "dpledger", "newTag": version[1]}]
    assert {MIGRATE["image"], SERVICE["image"]} == {"dpledger"}


def test_the_signing_key_that_the_compose_file_says_to_make_is_one(tmp_path: Path) -> None:
    text_ = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    command = re.search(r"#     (openssl .*secrets/signing_key)\n", text_)
    assert command
    (tmp_path / "secrets").mkdir()
    subprocess.run(["/bin/sh", "-c", command[1]], cwd=tmp_path, check=True)
    assert len(Signer.load(tmp_path / "secrets" / "signing_key").public_key) == 43


def test_the_witness_is_not_on_the_databases_volume() -> None:
    service, database = COMPOSE["services"]["service"], COMPOSE["services"]["database"]
    path = service["environment"]["DPLEDGER_WITNESS_FILE"]
    (mount,) = service["volumes"]
    assert Path(path).parent == Path(mount.partition(":")[2])
    assert mount.partition(":")[0] not in {one.partition(":")[0] for one in database["volumes"]}

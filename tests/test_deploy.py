"""What of the chart's renders and of the compose file can be checked without a cluster.

tests/deploy holds the renders and compares them with the chart.
"""

import re
import stat
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from fastapi.routing import APIRoute
from sqlalchemy import make_url

from service.settings import Settings
from service.transparency.signing import Signer
from service.web.api import health

ROOT: Final = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
Json = dict[str, Any]


def documents(profile: str) -> dict[tuple[str, str], Json]:
    """What is rendered for a profile, by kind and name."""
    text = (ROOT / "tests" / "deploy" / "golden" / f"{profile}.yaml").read_text(encoding="utf-8")
    found = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


PROFILES: Final = {name: documents(name) for name in ("default", "everything")}
FULL: Final = PROFILES["everything"]
JOBS: Final = ("witness", "backup", "doctor")


def pods() -> dict[str, Json]:
    """Each pod's specification, by profile and name."""
    found = {}
    for profile, all_ in PROFILES.items():
        for (kind, name), one in all_.items():
            if kind == "Deployment":
                found[f"{profile}-{name}"] = one["spec"]["template"]
            elif kind == "CronJob":
                found[f"{profile}-{name}"] = one["spec"]["jobTemplate"]["spec"]["template"]
    return found


PODS: Final = pods()
CONTAINERS: Final = {
    f"{name}-{one['name']}": (pod["spec"], one, name.partition("-")[0])
    for name, pod in PODS.items()
    for one in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
}
EVERY = pytest.mark.parametrize(
    ("pod", "container", "profile"), CONTAINERS.values(), ids=CONTAINERS
)
BOTH = pytest.mark.parametrize("profile", PROFILES)


def environment(container: Json, profile: str) -> dict[str, str]:
    """All variables of a container."""
    given = {one["name"]: one["value"] for one in container["env"]}
    for source in container.get("envFrom", []):
        given |= PROFILES[profile]["ConfigMap", source["configMapRef"]["name"]]["data"]
    return given


def test_by_default_there_is_what_serving_needs() -> None:
    assert {kind for kind, _ in PROFILES["default"]} == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service",
        "ServiceAccount",
    }  # fmt: skip
    added = {kind for kind, _ in FULL} - {kind for kind, _ in PROFILES["default"]}
    assert added == {
        "CronJob", "HorizontalPodAutoscaler", "Ingress", "PersistentVolumeClaim",
        "PrometheusRule", "ServiceMonitor",
    }  # fmt: skip
    assert {name for kind, name in FULL if kind == "CronJob"} == {f"dpledger-{one}" for one in JOBS}


@EVERY
def test_every_variable_is_read_by_the_service_and_its_value_is_valid(
    pod: Json, container: Json, profile: str
) -> None:
    found = environment(container, profile)
    fields = {name.removeprefix("DPLEDGER_").lower(): value for name, value in found.items()}
    assert set(fields) <= set(Settings.model_fields)
    settings = Settings(_env_file=None, **fields)  # type: ignore[call-arg, arg-type]
    address = make_url(settings.database_url)
    assert address.get_backend_name() == "postgresql"
    assert address.password is None
    assert address.query["sslmode"] in ("require", "verify-full")
    if certificate := address.query.get("sslrootcert"):
        mounts = {one["mountPath"] for one in container["volumeMounts"]}
        assert str(Path(str(certificate)).parent) in mounts


@EVERY
def test_every_secret_that_is_read_is_mounted_and_none_is_in_the_chart(
    pod: Json, container: Json, profile: str
) -> None:
    volumes = {one["name"]: one.get("secret") for one in pod["volumes"]}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    paths = [
        value
        for name, value in environment(container, profile).items()
        if name.endswith("_FILE") and name != "DPLEDGER_WITNESS_FILE"
    ]
    assert paths
    for path in map(Path, paths):
        secret = mounts[str(path.parent)]
        assert secret["defaultMode"] & stat.S_IRWXO == 0
        if items := secret.get("items"):
            assert path.name in {one["path"] for one in items}
    assert not any(kind == "Secret" for kind, _ in PROFILES[profile])


def test_only_the_container_that_migrates_has_the_owners_password() -> None:
    for name, (_, container, profile) in CONTAINERS.items():
        found = environment(container, profile)
        owner = "owner" in found["DPLEDGER_DATABASE_PASSWORD_FILE"]
        role = make_url(found["DPLEDGER_DATABASE_URL"]).username
        assert (owner, role) == (
            (True, "dpledger_owner") if name.endswith("-migrate") else (False, "dpledger")
        )
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert ("owner" in mounted) is owner
        assert ("DPLEDGER_ADMIN_KEY_FILE" in found) is name.endswith("-dpledger-dpledger")


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


@EVERY
def test_a_container_may_do_nothing_that_it_does_not_need(
    pod: Json, container: Json, profile: str
) -> None:
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in (
        ROOT / "Dockerfile"
    ).read_text(encoding="utf-8")
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {one["name"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert written <= {"temporary", container["name"]}  # a job writes to its own volume
    assert "memory" in container["resources"]["limits"]
    assert "memory" in container["resources"]["requests"]
    assert not re.search(r"hostPath|hostNetwork|hostPID|privileged", str(pod))


def test_no_pod_holds_a_token_of_the_cluster() -> None:
    assert len(PODS) == 5
    for template in PODS.values():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        account = FULL["ServiceAccount", pod["serviceAccountName"]]
        assert account["automountServiceAccountToken"] is False


@BOTH
def test_every_probe_asks_a_path_that_needs_no_key_and_only_readiness_asks_the_database(
    profile: str,
) -> None:
    (service,) = PROFILES[profile]["Deployment", "dpledger"]["spec"]["template"]["spec"][
        "containers"
    ]
    paths = {route.path for route in health.router.routes if isinstance(route, APIRoute)}
    probes = {name: service[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    assert {one["httpGet"]["path"] for one in probes.values()} <= paths
    assert probes["readiness"]["httpGet"]["path"] == "/readyz"
    assert probes["liveness"]["httpGet"]["path"] == "/healthz"
    (port,) = service["ports"]
    assert {one["httpGet"]["port"] for one in probes.values()} == {port["name"]}
    assert port["containerPort"] == Settings.model_fields["port"].default
    assert service["args"] == ["serve", "--host", "0.0.0.0"]  # noqa: S104


def seconds(given: dict[str, Any]) -> float:
    """How long a service takes at most to end."""
    fields = Settings.model_fields
    drain = given.get("DPLEDGER_DRAIN_SECONDS", fields["drain_seconds"].default)
    shutdown = given.get("DPLEDGER_SHUTDOWN_SECONDS", fields["shutdown_seconds"].default)
    return float(drain) + float(shutdown)


@BOTH
def test_a_pod_is_given_the_time_to_drain_and_to_finish(profile: str) -> None:
    pod = PODS[f"{profile}-dpledger"]["spec"]
    (service,) = pod["containers"]
    given = environment(service, profile)
    assert seconds(given) < pod["terminationGracePeriodSeconds"]
    probe = service["readinessProbe"]
    unready = probe["periodSeconds"] * probe["failureThreshold"]
    assert float(given["DPLEDGER_DRAIN_SECONDS"]) > unready
    compose = COMPOSE["services"]["service"]
    assert seconds(compose["environment"]) < int(compose["stop_grace_period"].removesuffix("s"))


def test_one_pod_always_serves() -> None:
    deployment = PROFILES["default"]["Deployment", "dpledger"]["spec"]
    assert deployment["replicas"] >= 2
    scaled = FULL["HorizontalPodAutoscaler", "dpledger"]["spec"]
    assert "replicas" not in FULL["Deployment", "dpledger"]["spec"]  # the autoscaler sets it
    assert scaled["minReplicas"] >= 2
    assert scaled["scaleTargetRef"]["name"] == "dpledger"
    for all_ in PROFILES.values():
        strategy = all_["Deployment", "dpledger"]["spec"]["strategy"]
        assert strategy["rollingUpdate"]["maxUnavailable"] == 0
        assert all_["PodDisruptionBudget", "dpledger"]["spec"]["minAvailable"] == 1


@BOTH
def test_everything_that_selects_pods_of_the_service_selects_no_job(profile: str) -> None:
    all_ = PROFILES[profile]
    labels = PODS[f"{profile}-dpledger"]["metadata"]["labels"]
    spread = PODS[f"{profile}-dpledger"]["spec"]["topologySpreadConstraints"][0]
    assert labels["app.kubernetes.io/component"] == "service"
    assert [
        all_["Deployment", "dpledger"]["spec"]["selector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
        all_["Service", "dpledger"]["spec"]["selector"],
        all_["PodDisruptionBudget", "dpledger"]["spec"]["selector"]["matchLabels"],
    ] == [labels] * 4
    network = all_["NetworkPolicy", "dpledger"]["spec"]
    for name, pod in PODS.items():  # jobs, too, reach the database and nothing else
        if name.startswith(profile):
            assert (
                network["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            )
    assert network["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule.get("ports") for rule in network["ingress"] + network["egress"])
    assert all(rule.get("from") for rule in network["ingress"])


def test_a_job_runs_once_at_a_time_on_a_volume_of_its_own() -> None:
    for name in JOBS:
        job = FULL["CronJob", f"dpledger-{name}"]["spec"]
        assert job["concurrencyPolicy"] == "Forbid"
        (container,) = PODS[f"everything-dpledger-{name}"]["spec"]["containers"]
        mounts = {one["name"]: one for one in container["volumeMounts"]}
        (command,) = container["args"]
        subprocess.run(["/bin/sh", "-n", "-c", command], check=True)
        volumes = set(re.findall(r"/volumes/\w+", command))
        assert volumes <= {one["mountPath"] for one in mounts.values()}
        if name == "doctor":
            assert all(mounts[one].get("readOnly") for one in ("backup", "witness"))
        else:
            assert f"/volumes/{name}" in volumes
    claims = {name for kind, name in FULL if kind == "PersistentVolumeClaim"}
    assert claims == {"dpledger-backup"}  # the witness has one that was given
    (kept,) = [one for (kind, _), one in FULL.items() if kind == "PersistentVolumeClaim"]
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_an_old_backup_is_deleted_only_after_a_new_one_was_written() -> None:
    (container,) = PODS["everything-dpledger-backup"]["spec"]["containers"]
    made, _, deleted = container["args"][0].partition(" && ")
    assert made.startswith("dpledger backup ")
    assert "-mtime +14 -delete" in deleted
    (loop,) = COMPOSE["services"]["backup"]["command"]
    assert loop.index("dpledger backup") < loop.index("-delete")
    assert COMPOSE["services"]["backup"]["entrypoint"] == [
        "/bin/sh",
        "-euc",
    ]  # it ends at a failure


def test_the_rules_are_those_that_prometheus_reads_elsewhere() -> None:
    rules = (ROOT / "deploy" / "monitoring" / "rules.yml").read_text(encoding="utf-8")
    assert FULL["PrometheusRule", "dpledger"]["spec"] == yaml.safe_load(rules)
    (endpoint,) = FULL["ServiceMonitor", "dpledger"]["spec"]["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"] == {"name": "dpledger-metrics", "key": "key"}


def test_the_ingress_has_tls_for_the_name_that_it_serves() -> None:
    ingress = FULL["Ingress", "dpledger"]["spec"]
    assert [one["host"] for one in ingress["rules"]] == ingress["tls"][0]["hosts"]
    assert ingress["tls"][0]["secretName"]


def test_chart_and_image_have_the_version_of_this_tree() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version[1], version[1])
    images = {one["image"] for _, one, profile in CONTAINERS.values() if profile == "default"}
    assert images == {f"dpledger:{version[1]}"}
    (pinned,) = {one["image"] for _, one, profile in CONTAINERS.values() if profile != "default"}
    assert "@sha256:" in pinned


def test_caddy_is_all_that_others_reach() -> None:
    for name, one in COMPOSE["services"].items():
        ports = one.get("ports", [])
        assert name == "caddy" or all(port.startswith("127.0.0.1:") for port in ports), name
        assert one.get("cap_drop") == ["ALL"] or name == "database", name
    caddy = (ROOT / "deploy" / "compose" / "Caddyfile").read_text(encoding="utf-8")
    assert "reverse_proxy service:8000" in caddy
    assert "{$LEDGER_NAME}" in caddy
    assert "LEDGER_NAME" in COMPOSE["services"]["caddy"]["environment"]


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

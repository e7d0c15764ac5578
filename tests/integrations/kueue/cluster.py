"""A fake API server of Kubernetes with workloads of Kueue, and the real controller beside it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import jsonpatch
import kmock
from kmock import action

CONTROLLER = Path(__file__).parents[3] / "deploy" / "kueue" / "controller.py"
APIS = "/apis/kueue.x-k8s.io/v1beta2"
CHECK = "dpledger"
OURS = {
    "name": CHECK,
    "state": "Pending",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
OTHER = {**OURS, "name": "provisioning"}
WAIT_SECONDS = 120.0
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: fake
clusters: [{name: fake, cluster: {server: "%s"}}]
contexts: [{name: fake, context: {cluster: fake, user: fake}}]
users: [{name: fake, user: {token: nothing}}]
"""


class Versioned(kmock.KubernetesEmulator):
    """kmock's server; its objects get a new resourceVersion with each change, as real ones do."""

    version = 1
    asked: ClassVar[set[tuple[str, str, str]]] = set()  # by the controller: verb, group, resource

    async def _handle(self, request: Any) -> Any:
        if "kopf" in request.headers.get("User-Agent", "") and request.resource is not None:
            self._note(request)
        if request.action in (action.CREATE, action.UPDATE):
            self.version += 1
            change = {"op": "add", "path": "/metadata/resourceVersion", "value": str(self.version)}
            if isinstance(request.data, list):
                request.data.append(change)
            else:
                request.data.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        try:
            return await super()._handle(request)
        except jsonpatch.JsonPatchException as error:
            raise kmock.KubernetesError(status=422, reason="Invalid", message=str(error)) from error

    def _note(self, request: Any) -> None:
        method, found = str(request.method.value).lower(), request.resource
        if found.plural is None:  # discovery, which each account may read
            return
        reads = "watch" if "watch" in request.params else "get" if request.name else "list"
        part = f"/{request.subresource}" if request.subresource else ""
        verb = reads if method == "get" else method
        self.asked.add((verb, found.group, f"{found.plural}{part}"))


class Cluster:
    """The API server in a thread; objects are read and written over HTTP."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: Any = None
        self.url: str = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        self.http = httpx.Client(base_url=self.url)

    async def _start(self) -> str:
        handler = Versioned()
        for path, kind, namespaced in (
            ("kueue.x-k8s.io/v1beta2/workloads", "Workload", True),
            ("kueue.x-k8s.io/v1beta2/admissionchecks", "AdmissionCheck", False),
            (
                "apiextensions.k8s.io/v1/customresourcedefinitions",
                "CustomResourceDefinition",
                False,
            ),
            ("v1/namespaces", "Namespace", False),
        ):
            info = {"kind": kind, "singular": kind.lower(), "namespaced": namespaced}
            verbs = {"get", "list", "watch", "patch", "create", "delete"}
            more = {"verbs": verbs, "subresources": {"status"}, "shortnames": (), "categories": ()}
            handler.resources[path] = {**info, **more}
        self._handler = await handler.__aenter__()
        self._server = await kmock.Server(handler).__aenter__()
        return str(self._server.url).rstrip("/")

    async def _end(self) -> None:
        await self._server.__aexit__(None, None, None)
        await self._handler.__aexit__(None, None, None)

    def stop(self) -> None:
        """End the thread."""
        self.http.close()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def asked(self) -> set[tuple[str, str, str]]:
        """What the controller did: verbs, groups and resources, as roles name them."""
        return Versioned.asked

    def call(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        """An answer of the API server."""
        answer = self.http.request(method, f"{APIS}{path}", json=content)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def create_check(self, name: str = CHECK, controller: str = "dpledger.example/budget") -> None:
        """An AdmissionCheck, as an administrator makes it."""
        spec = {"controllerName": controller}
        meta = {"name": name, "uid": str(uuid.uuid4()), "generation": 1}
        self.call(
            "POST", "/admissionchecks", {"kind": "AdmissionCheck", "metadata": meta, "spec": spec}
        )

    def submit(
        self,
        name: str,
        annotations: dict[str, str],
        *,
        checks: Any = (OTHER, OURS),
        quota: str = "True",
    ) -> str:
        """A workload, as Kueue makes it of a job; its uid."""
        uid = str(uuid.uuid4())
        template = {"metadata": {"annotations": annotations}, "spec": {"containers": []}}
        body = {
            "kind": "Workload",
            "metadata": {"name": name, "namespace": "team", "uid": uid},
            "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
            "status": {
                "conditions": [condition("QuotaReserved", quota)],
                "admissionChecks": list(checks),
            },
        }
        self.call("POST", "/namespaces/team/workloads", body)
        return uid

    def workload(self, name: str) -> dict[str, Any]:
        """A workload as it stands."""
        return self.call("GET", f"/namespaces/team/workloads/{name}")

    def check(self, name: str, of: str = CHECK) -> dict[str, Any]:
        """The state of a check of a workload."""
        found = self.workload(name)["status"]["admissionChecks"]
        return next(one for one in found if one["name"] == of)

    def answered(self, name: str, state: str, saying: str = "") -> dict[str, Any]:
        """The check of a workload once it has a state, and a text."""
        return until(
            lambda: self.check(name),
            lambda found: found["state"] == state and saying in found["message"],
        )

    def patch(self, name: str, change: dict[str, Any]) -> None:
        """What Kueue says of a workload."""
        self.call("PATCH", f"/namespaces/team/workloads/{name}", change)

    def delete(self, name: str) -> None:
        """A workload is to go, once its finalizers are gone."""
        self.call("DELETE", f"/namespaces/team/workloads/{name}")

    def exists(self, name: str) -> bool:
        """Whether a workload is there."""
        return self.http.get(f"{APIS}/namespaces/team/workloads/{name}").is_success


class Controller:
    """`kopf run controller.py` as a process."""

    def __init__(self, cluster: Cluster, ledger: str, key: Path, folder: Path) -> None:
        self._log = folder / "controller.log"
        config = folder / "kubeconfig"
        config.write_text(KUBECONFIG % cluster.url)
        self._environment = {
            **os.environ, "KUBECONFIG": str(config), "DPLEDGER_URL": ledger,
            "DPLEDGER_API_KEY_FILE": str(key), "DPLEDGER_RETRY_SECONDS": "0.5",
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text()

    def start(self) -> None:
        """Run it."""
        words = [sys.executable, "-m", "kopf", "run", "--standalone", "-A", str(CONTROLLER)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def kill(self) -> None:
        """As the machine would: at once."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def condition(kind: str, status: str = "True", reason: str = "Test") -> dict[str, str]:
    """A condition of an object."""
    said = {"type": kind, "status": status, "reason": reason, "message": ""}
    return {**said, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def until(
    ask: Callable[[], Any], holds: Callable[[Any], Any], seconds: float = WAIT_SECONDS
) -> Any:
    """What is answered, as soon as it holds."""
    end = time.monotonic() + seconds
    while not holds(found := ask()):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found

"""A cluster of one node: Debian's slurmctld and slurmd, with the scripts of examples/slurm."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "examples" / "slurm"
COMMANDS = ("slurmctld", "slurmd", "munged", "sbatch")
WAIT_SECONDS = 60.0
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
PrologSlurmctld={folder}/prolog.sh
EpilogSlurmctld={folder}/epilog.sh
TaskProlog={folder}/task_prolog.sh
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=private Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=open Nodes=ALL MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The commands of Slurm that this machine lacks."""
    return [name for name in COMMANDS if shutil.which(name) is None]


def settle(folder: Path, url: str, key: str) -> None:
    """Copy the scripts' common parts, with the settings of a ledger."""
    shutil.copy(SCRIPTS / "request.sh", folder)
    (folder / "settings.sh").write_text(
        f"DPLEDGER_URL={url}\nDPLEDGER_API_KEY_FILE={key}\nDPLEDGER_PARTITIONS=private\n"
        f"export SLURM_CONF={folder}/slurm.conf\n"
    )


class Slurm:
    """The daemons, and what is asked of them."""

    def __init__(self, folder: Path, ports: tuple[int, int]) -> None:
        self.folder = folder
        host = socket.gethostname().partition(".")[0]
        user = "root" if os.getuid() == 0 else os.environ["USER"]
        text = CONFIGURATION.format(
            host=host, port=ports[0], node_port=ports[1], user=user, folder=folder
        )
        (folder / "slurm.conf").write_text(text)
        for name in ("prolog", "epilog", "task_prolog"):
            wrapper = folder / f"{name}.sh"
            script = SCRIPTS / f"{name}.sh"
            wrapper.write_text(f"#!/bin/sh\nDPLEDGER_SLURM={folder} exec {script}\n")
            wrapper.chmod(0o755)
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start munged, slurmctld and slurmd, and wait for the node."""
        folder = self.folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munged = ["munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        munged += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self.run(*munged)
        self.run("slurmctld", "-f", str(folder / "slurm.conf"))
        self.run("slurmd", "-f", str(folder / "slurm.conf"))
        self.until(lambda: "idle" in self.run("sinfo", "--noheader"))

    def stop(self) -> None:
        """End the daemons that were started."""
        words = ("scontrol", "shutdown")
        subprocess.run(words, env=self._environment, check=False)
        munged = self.folder / "munge.pid"
        if munged.exists():
            os.kill(int(munged.read_text()), 15)

    def run(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            words, env=self._environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def submit(self, script: Path, comment: str, *words: str) -> str:
        """The number of a job."""
        out = ["--parsable", f"--output={self.folder}/%j.out", f"--comment={comment}"]
        return self.run("sbatch", *out, *words, str(script)).strip()

    def show(self, job: str) -> dict[str, str]:
        """What the controller says of a job."""
        text = self.run("scontrol", "--oneliner", "show", "job", job)
        pairs = (word.partition("=") for word in text.split() if "=" in word)
        return {"text": text} | {name: value for name, _, value in pairs}

    def output(self, job: str) -> str | None:
        """What a job printed; None if it never began."""
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else None

    def reached(self, job: str, state: str) -> dict[str, str]:
        """A job, once it is in a state."""
        self.until(lambda: self.show(job)["JobState"] == state)
        return self.show(job)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait."""
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < end, self.run("squeue")
            time.sleep(0.2)

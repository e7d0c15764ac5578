"""Ways in which a primary is lost, each until another has taken over."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.failovers.cluster import Cluster
from benchmarks.failovers.networks import Machine
from benchmarks.servers import ServerError

LASTS_SECONDS: Final = 1.5  # after another has taken over


@dataclass(frozen=True, slots=True)
class Cause:
    """A way in which a primary is lost."""

    name: str
    begin: Callable[[Machine], None]
    end: Callable[[Cluster, Machine], None]

    @contextmanager
    def of(self, cluster: Cluster, leader: Machine) -> Iterator[Machine]:
        """Lose a leader; the block begins when another has taken over. It comes back after it.

        Where none may take over, because the synchronous standby is away too, it is itself the
        leader that the block gets.
        """
        self.begin(leader)
        try:
            try:
                now = cluster.wait_for_leader(other_than=leader)
            except ServerError:
                now = leader
            yield now
            time.sleep(LASTS_SECONDS)
        finally:
            self.end(cluster, leader)


def _kill_database(machine: Machine) -> None:
    machine.signal(signal.SIGKILL, "postgres")


def _stop(machine: Machine) -> None:
    machine.signal(signal.SIGSTOP)


def _cut(machine: Machine) -> None:
    machine.plug("back", "front", into=False)


def _cut_from_others(machine: Machine) -> None:
    machine.plug("back", into=False)


def _nothing(_cluster: Cluster, _machine: Machine) -> None:
    """Patroni starts what has died by itself."""


def _start(cluster: Cluster, machine: Machine) -> None:
    cluster.start(machine)


def _go_on(_cluster: Cluster, machine: Machine) -> None:
    machine.signal(signal.SIGCONT)


def _reset(cluster: Cluster, machine: Machine) -> None:
    """What a watchdog does to a machine that stood still: it starts anew."""
    machine.kill()
    cluster.start(machine)


def _plug(_cluster: Cluster, machine: Machine) -> None:
    machine.plug("back", "front")


CAUSES: Final = (
    Cause("database killed", _kill_database, _nothing),
    Cause("machine killed", Machine.kill, _start),
    Cause("machine stopped", _stop, _reset),
    Cause("cut off", _cut, _plug),
    # The service still reaches it, and it is a primary until Patroni finds out.
    Cause("cut off from the others", _cut_from_others, _plug),
)
# Only on request: without a watchdog Patroni 3.0 takes the lock back when it goes on, while another
# is the primary, and an operator has to mend the cluster.
UNGUARDED: Final = Cause("stopped without watchdog", _stop, _go_on)

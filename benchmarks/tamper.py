"""Random edits of live rows, held against what was kept before; and ledgers that nobody edited.

    python benchmarks/tamper.py [--edits 1000] [--honest 1000] [--seed 1]

Ledgers come to be by the service's own write path. A witness file is written and each dataset's
signed checkpoint kept. Then, again and again, one row is changed, on one of the databases, in a
transaction that is taken back: plainly, or with skill, which makes every hash, count and sum that
is stored agree with it. `verify` must name the first leaf that is not what it was; where nothing
but a sum was changed, it must name that.
"""

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sqlalchemy import Connection, Engine

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.ledgers import Maker
from benchmarks.rewriting import Log, refit, undone
from benchmarks.servers import databases
from benchmarks.tampering import EDITS, NOT_SKILLED, Scene
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.ledger.incidents import INCIDENT_ROWS, incident_id
from service.operations.incident_notes import Action, NewIncidentNote, record_note
from service.schemas.event_codec import canonical
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import datasets as datasets_table
from service.storage.tables import incidents
from service.transparency.checkpoints import LogHeads
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from service.transparency.verification.report import Rank
from service.transparency.verification.saved_heads import Kept, of_checkpoints, of_witness
from service.transparency.witness import Witness, next_line

DATASETS: Final = 4  # of the ledger that is edited
HAPPENINGS: Final = 30  # to each of them
TRIES: Final = 40  # for a dataset that has what is to be edited


@dataclass(slots=True)
class Ground:
    """A ledger, and what was kept of it."""

    engine: Engine
    names: list[str]
    witness: Kept
    checkpoints: Kept
    leaves: dict[str, list[bytes]]


@dataclass(slots=True)
class Tried:
    """What became of the edits of one kind."""

    tried: int = 0
    detected: int = 0
    named: int = 0
    signed: int = 0  # found with the checkpoints alone
    wrong: list[str] = field(default_factory=list)


def make(engine: Engine, chance: random.Random, names: Sequence[str], happenings: int) -> None:
    """Ledgers; every third dataset is made from the one before."""
    migrations.upgrade(engine)
    maker = Maker(engine, chance)
    for index, name in enumerate(names):
        parent = names[index - 1] if index % 3 == 2 else None
        maker.dataset(name, happenings, parent=parent)
        _comment(engine, name)


def _comment(engine: Engine, dataset: str) -> None:
    """Comment on the first incident of a dataset, if it has one."""
    officer = Caller("officer", Role.ADMIN)
    new = NewIncidentNote(action=Action.COMMENT, text="The team was told.")
    with transaction(engine) as connection:
        query = INCIDENT_ROWS.where(datasets_table.c.name == dataset).order_by(incidents.c.id)
        first = connection.execute(query.limit(1)).one_or_none()
        if first is not None:
            record_note(connection, incident_id(first.id, first.occurred_at), new, officer)


def ground(
    engine: Engine,
    folder: Path,
    chance: random.Random,
    *,
    datasets: int = DATASETS,
    happenings: int = HAPPENINGS,
) -> Ground:
    """A ledger, with a witness file and signed checkpoints beside it."""
    names = [f"letters-{index}" for index in range(datasets)]
    make(engine, chance, names, happenings)
    signer = Signer.create(folder / f"{engine.dialect.name}.key")
    files = [folder / f"{engine.dialect.name}.{kind}" for kind in ("witness", "checkpoints")]
    with snapshot(engine) as connection:
        present = LogHeads.of(connection)
        line = next_line(connection, present, signer, Witness())
        files[0].write_text(canonical(line.model_dump() if line else {}) + "\n", encoding="utf-8")
        parts = [present.part(signer, name).model_dump() for name in (None, *names)]
        files[1].write_text("".join(canonical(one) + "\n" for one in parts), encoding="utf-8")
        leaves = {name: Log.read(connection, name).hashes() for name in names}
    return Ground(
        engine,
        names,
        of_witness(files[0], signer.public_key),
        of_checkpoints(files[1], signer.public_key),
        leaves,
    )


def first_difference(one: Sequence[bytes], other: Sequence[bytes]) -> int | None:
    """The first leaf that is not the same, or is there only once."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def attempt(here: Ground, chance: random.Random, kind: str, *, skilled: bool, found: Tried) -> bool:
    """One edit, which is taken back; whether some dataset had what is edited."""
    for _ in range(TRIES):
        name = chance.choice(here.names)
        with undone(here.engine) as connection:
            scene = Scene.open(connection, chance, name)
            claim = EDITS[kind](scene)
            if claim is None:
                continue
            if skilled:
                refit(connection, name, scene.pairs)
            after = first_difference(here.leaves[name], Log.read(connection, name).hashes())
            candidates = [*claim.positions, *([] if after is None else [after])]
            if skilled:
                candidates = [] if after is None else [after]
            expected = min(candidates) if candidates else None
            if expected is None and claim.words is None:
                continue  # the edit changed nothing
            _judge(here, connection, name, expected, claim.words, found)
            return True
    return False


def _judge(
    here: Ground, connection: Connection, name: str, expected: int | None, words: str | None,
    found: Tried,
) -> None:  # fmt: skip
    report = verify(connection, here.witness)
    first = report.first
    found.tried += 1
    found.signed += verify(connection, here.checkpoints).first is not None
    if first is None:
        found.wrong.append(f"{name}, leaf {expected}: not detected")
        return
    found.detected += 1
    if expected is None:
        right = first.dataset == name and words is not None and words in first.text
    else:
        place = first.dataset, first.position, first.rank
        right = place in {(name, expected, rank) for rank in (Rank.LEAF, Rank.STATE)}
    found.named += right
    if not right:
        found.wrong.append(f"{name}, leaf {expected}, {words}: {first.position} {first.text}")


def campaign(
    grounds: Sequence[Ground], chance: random.Random, edits: int
) -> dict[tuple[str, bool], Tried]:
    """As many edits, kind by kind, plain and skilled, on the databases in turn."""
    kinds = [(kind, False) for kind in EDITS]
    kinds += [(kind, True) for kind in EDITS if kind not in NOT_SKILLED]
    found: dict[tuple[str, bool], Tried] = defaultdict(Tried)
    done = number = 0
    while done < edits and number < 4 * edits:
        kind, skilled = kinds[number % len(kinds)]
        here = grounds[number // len(kinds) % len(grounds)]
        done += attempt(here, chance, kind, skilled=skilled, found=found[kind, skilled])
        number += 1
    return found


def honest(engines: Sequence[Engine], chance: random.Random, count: int) -> tuple[int, int]:
    """How many ledgers that nobody edited were made, and how many were said to be broken."""
    made, alarms = 0, 0
    for index, engine in enumerate(engines):
        share = count // len(engines) + (count % len(engines) if index == 0 else 0)
        names = [f"honest-{number}" for number in range(share)]
        make(engine, chance, names, chance.randint(6, 14))
        made += share
        alarms += _alarms(engine)
    return made, alarms


def _alarms(engine: Engine) -> int:
    """How many logs are said to be broken, which nobody has edited."""
    with snapshot(engine) as connection:
        report = verify(connection)
    for one in report.broken:
        print(f"FALSE ALARM: {one.text}")
    return len({one.dataset for one in report.broken})


def show(found: dict[tuple[str, bool], Tried]) -> bool:
    """The table; whether everything was detected and named."""
    print(f"\n{'edit':<44}{'tried':>7}{'detected':>10}{'named':>7}{'signed':>8}")
    total: Counter[str] = Counter()
    for (kind, skilled), one in sorted(found.items()):
        label = f"{kind}{', with skill' if skilled else ''}"
        print(f"{label:<44}{one.tried:>7}{one.detected:>10}{one.named:>7}{one.signed:>8}")
        for name in ("tried", "detected", "named", "signed"):
            total[name] += getattr(one, name)
        for text in one.wrong[:3]:
            print(f"    WRONG: {text}")
    print(
        f"{'all':<44}{total['tried']:>7}{total['detected']:>10}{total['named']:>7}"
        f"{total['signed']:>8}"
    )
    print("detected, named: with a witness; signed: detected with checkpoints alone")
    return total["tried"] == total["detected"] == total["named"]


@contextmanager
def engines(folder: Path) -> Iterator[list[Engine]]:
    """An empty database of each kind."""
    with databases(folder) as urls:
        found = [connect(url) for url in urls.values()]
        yield found
        for engine in found:
            engine.dispose()


def main() -> int:
    """Edit, verify, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--edits", type=int, default=1000)
    parser.add_argument("--honest", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance, started = random.Random(asked.seed), time.monotonic()
    with TemporaryDirectory(prefix="dpledger-bench-") as name, engines(Path(name)) as found:
        grounds = [ground(engine, Path(name), chance) for engine in found]
        right = show(campaign(grounds, chance, asked.edits))
        print(f"{time.monotonic() - started:.0f} s")
        made, alarms = honest(found, chance, asked.honest)
    print(f"honest ledgers: {made}, false alarms: {alarms} ({time.monotonic() - started:.0f} s)")
    return 0 if right and not alarms else 1


if __name__ == "__main__":
    sys.exit(main())

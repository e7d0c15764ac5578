"""Certificates of honest ledgers, which must all verify, and random edits, which must never.

    python benchmarks/certificates.py [--certificates 300] [--edits 1000] [--seed 1] [--every-bit]

Ledgers come to be by the service's own write path. Each run and each dataset is certified; every
number must be the one that the service answers, and the file must verify. Then files are edited:
their bytes, their JSON in other bytes, their content as it is, signed by another key, or signed by
the very key of the service. With --every-bit each bit of one file is turned, too.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import Engine

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.ledgers import Maker
from service.guarantees.guarantee import Question, dataset_guarantee, run_guarantee
from service.schemas.event_codec import canonical
from service.storage import migrations
from service.storage.engine import connect, snapshot
from service.transparency.certificates.envelope import (
    InvalidCertificateError,
    open_certificate,
    seal_certificate,
)
from service.transparency.certificates.issue import CertificateInputs, issue
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer

HAPPENINGS: Final = 25  # to each dataset
DELTA: Final = 1e-5
Json = dict[str, Any]
Edit = Callable[[bytes, random.Random, Signer, Signer], bytes]


def made(engine: Engine, signer: Signer, count: int, chance: random.Random) -> Iterator[bytes]:
    """Certificates of honest ledgers; every number is held against the service's answer."""
    maker, issued = Maker(engine, chance), 0
    for index in range(count):
        parent = f"data-{index - 1}" if index % 3 == 2 else None
        maker.dataset(f"data-{index}", HAPPENINGS, parent=parent)
        subjects = [("run", name) for name in maker.runs] + [("dataset", f"data-{index}")]
        for kind, name in subjects:
            asked = CertificateInputs(kind=kind, name=name, deltas=(DELTA,))
            raw = issue(engine, signer, asked, by="benchmark")
            require_equal(engine, kind, name, raw)
            yield raw
            issued += 1
            if issued == count:
                return


def require_equal(engine: Engine, kind: str, name: str, raw: bytes) -> None:
    """The certified epsilons are those that GET guarantee answers."""
    for one in json.loads(raw)["certificate"]["statements"]:
        asked = Question(delta=one["delta"], accountant=one["accountant"])
        with snapshot(engine) as connection:
            if kind == "run":
                answer: Any = run_guarantee(connection, name, asked)
            else:
                answer = dataset_guarantee(connection, name, asked)
                answer = answer if one["reservations"] else answer.without_reservations
        if (one["epsilon"], one["epsilon_lower"]) != (answer.epsilon, answer.epsilon_lower):
            raise SystemExit(f"{kind} {name}: certified {one}, answered {answer}")


# ---- edits


def _bit(raw: bytes, chance: random.Random, _own: Signer, _other: Signer) -> bytes:
    place = chance.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ 1 << chance.randrange(8)]) + raw[place + 1 :]


def _gone(raw: bytes, chance: random.Random, _own: Signer, _other: Signer) -> bytes:
    place = chance.randrange(len(raw))
    return raw[:place] + raw[place + chance.randint(1, 5) :]


def _more(raw: bytes, chance: random.Random, _own: Signer, _other: Signer) -> bytes:
    place = chance.randrange(len(raw) + 1)
    return raw[:place] + chance.choice([b" ", b"\n", b"0", b"9", b",", b"\x00"]) + raw[place:]


def _moved(raw: bytes, chance: random.Random, _own: Signer, _other: Signer) -> bytes:
    first, second = sorted(chance.sample(range(len(raw)), 2))
    middle = raw[first:second]
    changed = raw[:first] + middle[::-1] + raw[second:]
    return changed if changed != raw else raw + b" "


def _rewritten(raw: bytes, chance: random.Random, _own: Signer, _other: Signer) -> bytes:
    value = json.loads(raw)
    ways: list[Any] = [{"indent": 1}, {"separators": (", ", ": ")}, {"ensure_ascii": True}]
    text = json.dumps(value, sort_keys=True, **chance.choice(ways))
    return text.encode() if text.encode() != raw else raw + b"\n"


def _said(raw: bytes, chance: random.Random) -> Json:
    """The content with one fact, number or word of it changed."""
    certificate: Json = json.loads(raw)["certificate"]
    wanted = ("statements", "facts", "model_sha256", "issued_at", "log", "theorems", "standing")
    places = [place for name in wanted for place in _places(certificate, name)]
    while True:
        here, name = chance.choice(places)
        value = _otherwise(here[name], chance)
        if value != here[name]:
            here[name] = value
            return certificate


def _places(value: Any, name: Any) -> Iterator[tuple[Any, Any]]:
    inner = value[name]
    if isinstance(inner, dict | list):
        for part in inner if isinstance(inner, dict) else range(len(inner)):
            yield from _places(inner, part)
    else:
        yield value, name


def _otherwise(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return chance.choice([True, False, None, "0" * 64])
    if isinstance(value, int):
        return max(0, value + chance.choice([-1, 1, 100]))
    if isinstance(value, float):
        return value * chance.choice([0.5, 0.999, 1.001, 2.0])
    return chance.choice([value[:-1], value + "0", value[::-1], ""])


def _unsigned(raw: bytes, chance: random.Random, _own: Signer, _other: Signer) -> bytes:
    envelope = json.loads(raw)
    envelope["certificate"] = _said(raw, chance)
    return canonical(envelope).encode()


def _by_another(raw: bytes, chance: random.Random, _own: Signer, other: Signer) -> bytes:
    return seal_certificate(_said(raw, chance), other)


def _by_the_service(raw: bytes, chance: random.Random, own: Signer, _other: Signer) -> bytes:
    certificate = _said(raw, chance)
    return seal_certificate(certificate, own)


EDITS: Final[dict[str, Edit]] = {
    "a bit turned": _bit,
    "bytes removed": _gone,
    "a byte inserted": _more,
    "bytes reversed": _moved,
    "the same JSON in other bytes": _rewritten,
    "content changed, not signed": _unsigned,
    "content changed, signed by another key": _by_another,
    "content changed, signed by the service": _by_the_service,
}


def found(raw: bytes, public_key: str) -> bool:
    """Whether an edit is found out."""
    try:
        verify_bytes(raw, public_key=public_key)
    except InvalidCertificateError:
        return True
    return False


def every_bit(raw: bytes) -> int:
    """How many turned bits of a file are not found out."""
    missed = 0
    for place in range(len(raw)):
        for bit in range(8):
            changed = raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]
            try:
                open_certificate(changed)
            except InvalidCertificateError:
                continue
            missed += 1
    return missed


def campaign(arguments: argparse.Namespace, folder: Path) -> int:
    """How often something was not as it must be."""
    chance = random.Random(arguments.seed)
    engine = connect(f"sqlite:///{folder / 'ledger.db'}")
    migrations.upgrade(engine)
    own, other = Signer.create(folder / "own"), Signer.create(folder / "other")
    files = list(made(engine, own, arguments.certificates, chance))
    began = time.process_time()
    alarms = sum(found(raw, own.public_key) for raw in files)
    each = (time.process_time() - began) / len(files)
    sizes = sorted(map(len, files))
    print(f"{len(files)} honest certificates, {alarms} false alarms, {1000 * each:.0f} ms of "
          f"processor each, {sizes[0]} to {sizes[-1]} bytes")  # fmt: skip
    tried: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for index in range(arguments.edits):
        name = list(EDITS)[index % len(EDITS)]
        raw = EDITS[name](chance.choice(files), chance, own, other)
        tried[name] += 1
        missed[name] += not found(raw, own.public_key)
    print(f"{'edit':42}{'tried':>8}{'found':>8}")
    for name, count in tried.items():
        print(f"{name:42}{count:8}{count - missed[name]:8}")
    bits = 0
    if arguments.every_bit:
        smallest = min(files, key=len)
        bits = every_bit(smallest)
        print(f"every bit of {len(smallest)} bytes: {8 * len(smallest) - bits} found")
    engine.dispose()
    return alarms + missed.total() + bits


def main() -> None:
    """Print the table; exit 1 if an edit was not found out, or an honest file was refused."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificates", type=int, default=300)
    parser.add_argument("--edits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every-bit", action="store_true")
    with TemporaryDirectory() as folder:
        sys.exit(bool(campaign(parser.parse_args(), Path(folder))))


if __name__ == "__main__":
    main()

"""Reconciliations, and whether the ledger is suspended: what is signed of them, and what is said.

A reconciliation excuses what was kept only where the key signed it that signed what was kept, and
only where who verifies says to know of its generation.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, select

from service.storage.tables import acts, installation
from service.transparency.reconciliation import (
    RECONCILED,
    Reconciliation,
    ReportedHead,
    Suspension,
    list_effective,
    merge_reported_heads,
)
from service.transparency.recovery import RECOVERING, SUSPENDED
from service.transparency.verification.log import describe_act
from service.transparency.verification.report import Broken, Rank, VerificationReport, to_printable
from service.transparency.verification.rows import UNREADABLE, every
from service.transparency.verification.saved_heads import Kept, SavedHead

_INSTALLATION: Final = select(installation.c.ledger_id)
_RECONCILED: Final = (
    select(acts)
    .where(acts.c.dataset_id.is_(None), acts.c.kind == RECONCILED)
    .order_by(acts.c.position)
)
_UNSIGNED: Final = "is no reconciliation that a key signed, and excuses nothing"
_REPEATED: Final = "begins a generation that had begun before, and excuses nothing"
_ELSEWHERE: Final = "is signed for another ledger, which this one is a copy of, and excuses nothing"


@dataclass(frozen=True, slots=True)
class Generations:
    """What a ledger tells of its reconciliations."""

    ledger_id: str
    told: Sequence[Reconciliation]  # that some key signed, oldest first

    @classmethod
    def read(cls, connection: Connection, report: VerificationReport) -> "Generations":
        """Read them; what is none that counts for anybody is told."""
        ids = [str(row["ledger_id"]) for row in every(connection, _INSTALLATION)]
        ledger_id, told = ids[0] if ids else "", []
        latest: dict[str, int] = defaultdict(int)  # by key
        for act in every(connection, _RECONCILED):
            try:
                one = Reconciliation.read(act["content"], by=act["by"], position=act["position"])
            except UNREADABLE:
                report.add(_broken_act(act, _UNSIGNED))
                continue
            if one.ledger_id != ledger_id:
                report.notes.append(f"{describe_act(act)} {_ELSEWHERE}.")
            elif one.generation <= latest[one.public_key]:
                report.add(_broken_act(act, _REPEATED))
            else:
                latest[one.public_key] = one.generation
                told.append(one)
        return cls(ledger_id, told)

    def excused(self, kept: Kept, report: VerificationReport, *, known: int) -> Kept:
        """What was kept, with what admins declared lost marked as such.

        Logs are also held against what they were when they were reconciled: so what is excused had
        not fitted already then, and was not changed since.

        Args:
            kept: elsewhere.
            report: takes notes.
            known: the generation up to which who verifies knows of reconciliations.
        """
        notes: list[str] = []
        logs = {}
        for name in kept.logs:
            log = kept.of(name)
            heads = [self._judged(name, head, known, notes) for head in log.heads]
            # Leaves are those of the head that was signed with them.
            gone = any(head.excused and head.size == log.size for head in heads)
            heads += self._then(name, {head.key for head in heads})
            logs[name] = replace(
                log, leaves=b"" if gone else log.leaves, heads=tuple(sorted(heads))
            )
        report.notes.extend(dict.fromkeys(notes))
        return replace(kept, logs=logs)

    def _believed(self, key: str) -> list[Reconciliation]:
        return list_effective(self.told, ledger_id=self.ledger_id, public_key=key)

    def _judged(self, name: str | None, head: SavedHead, known: int, notes: list[str]) -> SavedHead:
        log = "the installation" if name is None else f"dataset {to_printable(name)}"
        for one in self._believed(head.key):
            if not one.abandons(name, size=head.size, generation=head.generation):
                continue
            if one.generation > known:
                notes.append(
                    f"{to_printable(one.text)} If you know of that, say "
                    f"--generation {one.generation}: then what it declared lost is not held "
                    "against the ledger."
                )
                continue
            notes.append(
                f"{head.source} is held against {log} only if it fits. {to_printable(one.text)}"
            )
            return replace(head, excused=True)
        return head

    def _then(self, name: str | None, keys: Iterable[str]) -> list[SavedHead]:
        """The log as it was at each reconciliation."""
        believed = [one for key in sorted(keys) for one in self._believed(key)]
        then = [(one, one.continues(name)) for one in believed]
        return [
            SavedHead(
                size=head.size,
                root=bytes.fromhex(head.root),
                source=f"the reconciliation that bega generation {one.generation}",
                generation=one.generation,
                key=one.public_key,
            )
            for one, head in then
            if head is not None
        ]


def require_suspension(
    report: VerificationReport, row: Mapping[str, Any], told: Iterable[Mapping[str, Any]]
) -> None:
    """Hold whether writing is refused against what the installation's acts say of it."""
    state, lost = None, []
    for act in told:
        if act["kind"] == SUSPENDED:
            state = state or SUSPENDED
            lost += _list_heads(act)
        elif act["kind"] == RECOVERING:
            state = RECOVERING
        elif act["kind"] == RECONCILED:
            state, lost = None, []
    stored = None if row["suspended"] is None else Suspension.read(row["suspended"])
    there = (None, []) if stored is None else (stored.state, stored.lost)
    if there != (state, merge_reported_heads(lost)):
        what = "whether it is suspended, and what it has lost"
        why = f"differs from what the acts say, which is {state or 'open'}"
        report.add(Broken(dataset=None, rank=Rank.DERIVED, position=None, what=what, why=why))


def _list_heads(act: Mapping[str, Any]) -> list[ReportedHead]:
    try:
        return [ReportedHead.model_validate(one) for one in json.loads(act["content"])["lost"]]
    except UNREADABLE:
        return []  # then what is stored differs from it


def _broken_act(act: Mapping[str, Any], why: str) -> Broken:
    position = act["position"] if isinstance(act["position"], int) else None
    what = describe_act(dict(act))
    return Broken(dataset=None, rank=Rank.LEAF, position=position, what=what, why=why)

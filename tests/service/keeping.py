"""What is kept of a ledger on another disk, by the service's own functions."""

import json
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from service.schemas.event_codec import canonical
from service.storage.engine import snapshot
from service.transparency.checkpoints import LogHeads
from service.transparency.signing import Signer
from service.transparency.witness import Witness, next_line


@dataclass(frozen=True, slots=True)
class Files:
    """A witness, a checkpoint for each log, one a line, one with all heads, and who signed them."""

    witness: Path
    checkpoints: Path
    whole: Path
    public_key: str


def keep(engine: Engine, folder: Path) -> Files:
    """Write them."""
    signer = Signer.create(folder / "signing_key")
    witness, checkpoints, whole = (folder / name for name in ("witness", "checkpoints", "whole"))
    with snapshot(engine) as connection:
        present = LogHeads.of(connection)
        line = next_line(connection, present, signer, Witness())
        assert line is not None
        witness.write_text(canonical(line.model_dump()) + "\n", encoding="utf-8")
        kept = present.whole(signer).model_dump()
        whole.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        parts = [present.part(signer, head.dataset).model_dump() for head in present.in_order]
    checkpoints.write_text("".join(canonical(one) + "\n" for one in parts), encoding="utf-8")
    return Files(witness, checkpoints, whole, signer.public_key)

"""Audits of a training in one run: fair coins, guesses, and the two requests that record them."""

import math
import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal

from dpledger_client.client import Client
from dpledger_client.names import name_of

SIGNIFICANCE: Final = 0.05


class OneRunAudit:
    """An audit that the service knows before any score is seen.

    Leave out of the training those canaries whose coin says so, train, score every canary, and call
    `finish`. Coins come from the operating system and stay in this object: what trains must not see
    more of them than which records it trains on.

    Attributes:
        number: of the audit among the run's.
        included: whether canary i is in the data, shape (canaries,).

    Args:
        client: the connection.
        run: name of the run that is audited.
        canaries: how many records are in or out by a coin each.
        guesses: of how many coins the guess counts; even, at most `canaries`.
        delta: of the claims that may be contradicted, in [0, 1).
        out: what is in the data in the place of a canary that is out.
        synthetic: whether the canaries are invented. With the records of people, the result is
            outside every guarantee.
        significance: chance at most that an audit of the run contradicts a true claim, in (0, 1).
        view: what the scores are made from.
        name: of the audit within the run; a request that is repeated needs one.

    Raises:
        ValueError: the number of guesses is odd.
        DPLedgerError: the service refuses the audit.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        *,
        canaries: int,
        guesses: int,
        delta: float,
        out: Literal["absent", "null", "replaced"],
        synthetic: bool,
        significance: float = SIGNIFICANCE,
        view: Literal["every_step", "last_iterate"] = "every_step",
        name: str | None = None,
    ) -> None:
        if guesses % 2:
            raise ValueError("guesses must be even: as many canaries are guessed in as out.")
        self._transport = client._transport
        self._path = f"/v1/runs/{name_of(run)}/audits"
        self._guesses = guesses
        plan = {
            "canaries": canaries,
            "guesses": guesses,
            "delta": delta,
            "out": out,
            "synthetic": synthetic,
            "significance": significance,
            "view": view,
            "name": name or f"audit-{secrets.token_hex(8)}",
        }
        self.number: int = self._transport.post(self._path, plan)["number"]
        self.included: tuple[bool, ...] = tuple(bool(secrets.randbits(1)) for _ in range(canaries))

    def finish(self, scores: Sequence[float]) -> dict[str, Any]:
        """Guess the canaries with the largest scores in, those with the smallest out, and tell.

        Args:
            scores: of canary i, larger where it is more likely in the data; finite, shape
                (canaries,).

        Returns:
            The audit as the service answers it: `correct`, `epsilon_at_least` (nats, lower),
            `sharper`, and `compared` with the certificate.

        Raises:
            ValueError: there is not one finite score for each canary.
            DPLedgerError: the service refuses the result, or has another one.
        """
        values = [float(score) for score in scores]
        if len(values) != len(self.included) or not all(map(math.isfinite, values)):
            raise ValueError(f"scores must be {len(self.included)} finite numbers.")
        order = sorted(range(len(values)), key=values.__getitem__)
        half = self._guesses // 2
        said_out, said_in = order[:half], order[len(order) - half :]
        correct = sum(self.included[canary] for canary in said_in)
        correct += sum(not self.included[canary] for canary in said_out)
        return self._transport.post(f"{self._path}/{self.number}:result", {"correct": correct})

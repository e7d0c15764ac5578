"""What a client asks about change requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpledger_client.checkpoints import name_of
from dpledger_client.transport import Transport


class ChangeRequests:
    """The calls of a `Client` that are about change requests."""

    _transport: Transport

    def request_budget(
        self,
        dataset: str,
        *,
        epsilon: float,
        delta: float,
        reason: str,
        envelope: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Ask for another limit or envelope of a dataset; another person decides.

        The same call again is the same request.

        Args:
            dataset: its name.
            epsilon: the limit, in nats.
            delta: in (0, 1); once answers were seen, that of the present limit.
            reason: what it is needed for; stored permanently.
            envelope: the items of an envelope that replaces the filter, before the first answer.

        Raises:
            NotFound: there is no such dataset.
            InvalidRequest: the change could not be made now.
        """
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
        if envelope is not None:
            budget |= {"filter": "envelope", "envelope": list(envelope)}
        path = f"/v1/datasets/{name_of(dataset)}/requests"
        return self._transport.post(path, {"reason": reason, "budget": budget})

    def requests(
        self, *, state: str | None = None, dataset: str | None = None, by: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Change requests, the oldest first; in a state, of a dataset or of a person only."""
        return self._transport.listed(
            "/v1/requests", "requests", state=state, dataset=dataset, by=by
        )

    def request(self, request: str) -> dict[str, Any]:
        """A change request as it stands."""
        return self._transport.get(f"/v1/requests/{name_of(request)}")

    def approve_request(self, request: str, reason: str) -> dict[str, Any]:
        """Approve what another person asked for, and make the change.

        Raises:
            AnotherPerson: the same person asked for it.
            Conflict: it was decided otherwise, or has expired.
        """
        return self._decided(request, "approve", reason)

    def reject_request(self, request: str, reason: str) -> dict[str, Any]:
        """Reject what another person asked for; errors as of `approve_request`."""
        return self._decided(request, "reject", reason)

    def withdraw_request(self, request: str, reason: str) -> dict[str, Any]:
        """Withdraw what the same person asked for."""
        return self._decided(request, "withdraw", reason)

    def _decided(self, request: str, verb: str, reason: str) -> dict[str, Any]:
        path = f"/v1/requests/{name_of(request)}:{verb}"
        return self._transport.post(path, {"reason": reason})

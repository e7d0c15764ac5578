"""What a client asks about change requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpledger_client.answers.requests import ChangeRequest
from dpledger_client.names import path_of
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
        envelope: Sequence[Mapping[str, object]] | None = None,
    ) -> ChangeRequest:
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
        path = path_of("datasets", dataset, "/requests")
        return ChangeRequest(self._transport.post(path, {"reason": reason, "budget": budget}))

    def requests(
        self, *, state: str | None = None, dataset: str | None = None, by: str | None = None
    ) -> Iterator[ChangeRequest]:
        """Change requests, the oldest first; in a state, of a dataset or of a person only."""
        query = {"state": state, "dataset": dataset, "by": by}
        return map(ChangeRequest, self._transport.listed("/v1/requests", "requests", **query))

    def request(self, request: str) -> ChangeRequest:
        """A change request as it stands."""
        return ChangeRequest(self._transport.get(path_of("requests", request)))

    def approve_request(self, request: str, reason: str) -> ChangeRequest:
        """Approve what another person asked for, and make the change.

        Raises:
            AnotherPerson: the same person asked for it.
            Conflict: it was decided otherwise, or has expired.
        """
        return self._decided(request, "approve", reason)

    def reject_request(self, request: str, reason: str) -> ChangeRequest:
        """Reject what another person asked for; errors as of `approve_request`."""
        return self._decided(request, "reject", reason)

    def withdraw_request(self, request: str, reason: str) -> ChangeRequest:
        """Withdraw what the same person asked for."""
        return self._decided(request, "withdraw", reason)

    def _decided(self, request: str, verb: str, reason: str) -> ChangeRequest:
        path = path_of("requests", request, f":{verb}")
        return ChangeRequest(self._transport.post(path, {"reason": reason}))

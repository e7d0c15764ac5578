"""What a client asks about incidents, and says of them."""

from collections.abc import Iterator

from dpledger_client.answers.incidents import Incident
from dpledger_client.names import name_of
from dpledger_client.transport import Transport


class IncidentCalls:
    """The calls of a `Client` that are about incidents."""

    _transport: Transport

    def incidents(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        dataset: str | None = None,
        assignee: str | None = None,
    ) -> Iterator[Incident]:
        """Incidents with what was done about each, the newest first.

        Args:
            state: open or acknowledged; both by default.
            kind: such as overdraft.
            dataset: of this dataset only.
            assignee: assigned to this key only.
        """
        query = {"state": state, "kind": kind, "dataset": dataset, "assignee": assignee}
        return map(Incident, self._transport.listed("/v1/incidents", "incidents", **query))

    def comment_incident(self, incident: str, text: str) -> Incident:
        """Comment on an incident; the same twice in a row is recorded once.

        Raises:
            NotFound: there is no such incident.
        """
        return self._noted(incident, action="comment", text=text)

    def assign_incident(
        self, incident: str, assignee: str | None, text: str | None = None
    ) -> Incident:
        """Assign an incident to a key, or to none; an admin may.

        Raises:
            Forbidden: the key's scope does not allow it.
            InvalidRequest: the assignee is no key in force.
        """
        return self._noted(incident, action="assign", assignee=assignee, text=text)

    def acknowledge_incident(self, incident: str, text: str | None = None) -> Incident:
        """Say that nothing is left to do about it; an owner, an approver or an admin may.

        Raises:
            Forbidden: the key's scope does not allow it.
            NotFound: there is no such incident.
        """
        return self._noted(incident, action="acknowledge", text=text)

    def reopen_incident(self, incident: str, text: str | None = None) -> Incident:
        """Open an acknowledged incident again; errors as of `acknowledge_incident`."""
        return self._noted(incident, action="reopen", text=text)

    def _noted(self, incident: str, **note: str | None) -> Incident:
        body = {name: value for name, value in note.items() if value is not None}
        path = f"/v1/incidents/{name_of(incident)}/notes"
        return Incident(self._transport.post(path, body))

"""The calls of a client about datasets: create, read, explain, certify."""

from collections.abc import Iterator, Mapping, Sequence

from dpledger_client.answers.datasets import DatasetState
from dpledger_client.answers.explanations import Explanation, Remedies
from dpledger_client.answers.guarantees import DatasetGuarantee
from dpledger_client.names import path_of
from dpledger_client.transport import Transport
from dpledger_client.wire_types import (
    Filter,
    NeighboringRelation,
    RowsPerParent,
    TheoremStatus,
)


class DatasetCalls:
    """The calls of a `Client` about datasets."""

    _transport: Transport

    def create_dataset(
        self,
        name: str,
        *,
        dataset_size: int,
        neighboring_relation: NeighboringRelation,
        privacy_unit: str,
        budget: Mapping[str, object] | None = None,
        filter: Filter | None = None,
        orders: Sequence[float] | None = None,
        envelope: Sequence[Mapping[str, object]] | None = None,
        for_events: Sequence[Mapping[str, object]] | None = None,
        opening_balance: Sequence[Mapping[str, object]] | None = None,
        parents: Sequence[str] | None = None,
        rows_per_parent_record: RowsPerParent | int | None = None,
        accept: Sequence[TheoremStatus] | None = None,
    ) -> DatasetState:
        """Create a dataset, or find the one that the same call created.

        Args:
            name: global, never reused.
            dataset_size: records; a public, declared constant.
            neighboring_relation: add_or_remove_one, replace_one or replace_special.
            privacy_unit: what one record is, in words.
            budget: {"epsilon": nats, "delta": in (0, 1)}, which may never be passed. It may also
                have the next three as its members, as `plan(as_envelope=True).envelope` does.
            filter: that holds the budget; by default the service chooses.
            orders: Renyi orders at which the filter counts, each > 1.
            envelope: the steps that the budget holds, each made by `event(...)`; the filter is then
                envelope.
            for_events: a training, each event made by `event(...)`: the service chooses the order
                that holds the most of it.
            opening_balance: steps that were taken before the dataset was in the ledger, each made
                by `event(...)`; they are counted as taken.
            parents: datasets that this one is drawn from.
            rows_per_parent_record: how many rows a record of a parent becomes: at_most_one,
                exactly_one, or a number: at most so many.
            accept: statuses of theorems that may count; by default published and declared.

        Returns:
            The dataset; when it was just created, with what it admits of usual trainings.

        Raises:
            Conflict: another call created a dataset of that name.
            ValueError: filter, orders or an envelope without a budget; or a name that cannot be.
        """
        body = {
            "name": name, "dataset_size": dataset_size,
            "neighboring_relation": neighboring_relation, "privacy_unit": privacy_unit,
            "budget": _budget(budget, filter, orders, envelope),
            "for": None if for_events is None else {"events": list(for_events)},
            "opening_balance": None if opening_balance is None else list(opening_balance),
            "parents": parents, "accept": accept,
            "rows_per_parent_record": _rows(rows_per_parent_record),
        }  # fmt: skip
        return DatasetState(self._transport.of_dataset(name).post("/v1/datasets", body))

    def dataset(self, name: str) -> DatasetState:
        """A dataset with what is spent, reserved and remaining."""
        return DatasetState(self._transport.get(path_of("datasets", name)))

    def datasets(self) -> Iterator[DatasetState]:
        """Every dataset, in creation order."""
        return map(DatasetState, self._transport.listed("/v1/datasets", "datasets"))

    def dataset_guarantee(
        self,
        dataset: str,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        accountant: str | None = None,
    ) -> DatasetGuarantee:
        """What all runs of a dataset have spent together; arguments as in `guarantee`."""
        path = path_of("datasets", dataset, "/guarantee")
        found = self._transport.get(path, delta=delta, epsilon=epsilon, accountant=accountant)
        return DatasetGuarantee(found)

    def explain(self, dataset: str, *, delta: float | None = None) -> Explanation:
        """Who spent what of a dataset, the largest shares first.

        Args:
            dataset: its name.
            delta: in (0, 1); by default that of its budget.

        Raises:
            InvalidRequest: there is no delta to answer at.
        """
        path = path_of("datasets", dataset, "/explain")
        return Explanation(self._transport.get(path, delta=delta))

    def remedies(
        self,
        dataset: str,
        events: Sequence[Mapping[str, object]],
        *,
        run: str | None = None,
        branch: str = "main",
    ) -> Remedies:
        """Whether steps would fit in a dataset's budget now, and what to change if not.

        Args:
            dataset: its name.
            events: the steps, each made by `event(...)`. Nothing is recorded.
            run: that would take them next; its own budget counts, too.
            branch: of the run.

        Raises:
            UnsupportedEvent: no accepted theorem bounds an event.
        """
        path = path_of("datasets", dataset, "/explain")
        body = {"events": list(events), "run": run, "branch": branch}
        return Remedies(self._transport.post(path, body))


def _rows(given: RowsPerParent | int | None) -> object:
    """As the contract has it: one row at most has a word."""
    if not isinstance(given, int):
        return given
    return "at_most_one" if given == 1 and given is not True else {"at_most": given}


def _budget(
    budget: Mapping[str, object] | None,
    filter: Filter | None,
    orders: Sequence[float] | None,
    envelope: Sequence[Mapping[str, object]] | None,
) -> Mapping[str, object] | None:
    if envelope is not None and filter is None:
        filter = "envelope"
    given = {"filter": filter, "orders": orders, "envelope": envelope}
    given = {name: value for name, value in given.items() if value is not None}
    if given and budget is None:
        raise ValueError(f"{', '.join(given)}: give the budget, too.")
    return None if budget is None else {**budget, **given}

"""What a run can be asked while it trains: its epsilon, its budget, its picture."""

from typing import Final

from dpledger_client.answers.budgets import BudgetState
from dpledger_client.answers.guarantees import Guarantee
from dpledger_client.answers.notebook import band, table
from dpledger_client.errors import DPLedgerError
from dpledger_client.recording.branch_writer import Journal
from dpledger_client.recording.certified_epsilon import certified_epsilon
from dpledger_client.rounding import percent_up
from dpledger_client.training.distributed import Follower
from dpledger_client.transport import Transport

_POINTS: Final = 200  # of a picture


class RunReadings:
    """The part of a `Run` that reads."""

    _transport: Transport
    _writer: Journal | Follower
    name: str
    dataset: str
    rank: int

    @property
    def unsent_steps(self) -> int:
        """How many steps the service has not confirmed yet; the spool has them."""
        return sum(span.steps for span in self._writer.unsent())

    @property
    def trouble(self) -> Exception | None:
        """Why the last attempt to send in the background failed; None when it did not."""
        return self._writer.trouble

    @property
    def last_guarantee(self) -> Guarantee | None:
        """The quick reading in the service's last reply, if it has one: no smaller than epsilon."""
        found = self._writer.reply.get("guarantee")
        return None if found is None else Guarantee(found)

    @property
    def epsilon(self) -> float | None:
        """Certified epsilon of all steps so far, which the service is asked for: nats, upper.

        Infinite if unbounded; None without a delta, and on the ranks that do not report. While the
        service is away it is that of its last reply, which may be larger and counts no unsent step.
        """
        return certified_epsilon(self)

    @property
    def budget(self) -> BudgetState | None:
        """The budget in the service's last reply; None when there is none."""
        found = self._writer.reply.get("budget")
        return None if found is None else BudgetState(found)

    @property
    def verdict(self) -> str | None:
        """`within` or `overdraft`, by the service's last reply; None before the first."""
        return self._writer.reply.get("verdict")

    def flush(self) -> None:
        """Send everything so far.

        Raises:
            DPLedgerError: it could not be sent; the spool has it, and it is sent later.
        """
        self._writer.flush()

    def guarantee(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        accountant: str | None = None,
    ) -> Guarantee:
        """What the run has spent over all its branches; unsent steps are sent first.

        Args:
            delta: in (0, 1); by default the run's, else that of the dataset's budget.
            epsilon: nats; ask for the delta at this epsilon instead.
            accountant: by default the best.

        Raises:
            DPLedgerError: steps could not be sent, or the question was refused.
        """
        self.flush()
        path, query = f"/v1/runs/{self.name}/guarantee", {"epsilon": epsilon}
        found = self._transport.guarantee(path, delta=delta, accountant=accountant, **query)
        return Guarantee(found)

    def _repr_html_(self) -> str:
        """In a notebook: epsilon by step as the service has it, and what the budget says."""
        told = {"dataset": self.dataset, "verdict": self.verdict, "unsent steps": self.unsent_steps}
        budget, notes = self.budget, []
        if told["unsent steps"]:
            notes.append(f"{self.unsent_steps:,} steps not sent yet")
        if self.rank:
            return table(f"Run {self.name}, rank {self.rank}", told)
        try:
            path = f"/v1/runs/{self.name}/history"
            found = self._transport.get(path, points=_POINTS, retries=0)
        except DPLedgerError as error:
            return table(f"Run {self.name}", {**told, "history": error})
        if budget is not None and budget.get("share") is not None:
            notes.append(f"{percent_up(budget['share'])} of the limit is charged")
        limit = None if budget is None else budget.get("epsilon")
        return band(
            self.name, found["points"], delta=found["delta"], limit=limit, note="; ".join(notes)
        )

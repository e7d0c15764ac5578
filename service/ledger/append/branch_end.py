"""The end of a branch, where the writer charges further steps to budgets.

A charge and an answer about what would fit both ask this module, so they agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.ledger.append.admission import (
    BudgetCheck,
    PositionedSpan,
    compute_append_effect,
    first_steps,
    require_bounds,
    require_budget,
    scopes_of,
)
from service.ledger.append.fresh_noise import require_fresh_noise
from service.ledger.append.state import Branch, DatasetState, RunState
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import NO_SHIFTS
from service.schemas.event_codec import MAIN


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """The end of a run's branch, or the beginning of a run that does not exist yet."""

    state: DatasetState
    run: RunState | None
    branch: Branch

    def scopes(self, parts: Sequence[PositionedSpan]) -> Sequence[BudgetCheck]:
        """The budgets of steps: the run's own is none of them where they keep to its plan."""
        return scopes_of(self.state, self.run, with_run=not self.keeps_plan(parts))

    def keeps_plan(self, parts: Sequence[PositionedSpan]) -> bool:
        """Whether a run that keeps to its plan still does after the steps."""
        return 0 < self._planned(parts) == sum(part.steps for part in parts)

    def change_of(self, parts: Sequence[PositionedSpan]) -> BudgetDelta:
        """What steps would change."""
        shifts = NO_SHIFTS if self.run is None else self.run.shifts
        return compute_append_effect(self.branch, parts, shifts).move

    def require_accounted(self, parts: Sequence[PositionedSpan]) -> None:
        """Refuse what cannot be accounted.

        Raises:
            UnsupportedEventError: names the first such event and the reason.
        """
        require_bounds(parts, self.state, self.scopes(parts))
        require_fresh_noise(parts, self.change_of)

    def require_room(self, parts: Sequence[PositionedSpan], move: BudgetDelta) -> None:
        """Refuse what does not fit in every budget.

        Args:
            parts: the steps.
            move: what they change.

        Raises:
            BudgetExhaustedError: names each scope that fails, and how many leading steps would fit.
        """
        kept = 0 if self.keeps_plan(parts) else self._kept(parts)
        require_budget(self.scopes(parts), parts, move, self.change_of, kept=kept)

    def _kept(self, parts: Sequence[PositionedSpan]) -> int:
        """How many leading steps are admitted because the run's plan has them."""
        kept = first_steps(parts, self._planned(parts))
        return sum(part.steps for part in kept) if kept and self.admits(kept) else 0

    def admits(self, parts: Sequence[PositionedSpan]) -> bool:
        """Whether the steps are within every budget."""
        move = self.change_of(parts)
        return all(held.scope.admits(held.sums(move)) for held in self.scopes(parts))

    def _planned(self, parts: Sequence[PositionedSpan]) -> int:
        """How many leading steps the run's plan has at their place; none if the run left it."""
        run = self.run
        if run is None or not run.on_plan or run.plan is None or self.branch.name != MAIN:
            return 0
        reached = first = self.branch.next_step
        at, end = 0, 0  # the part to compare next, and the end of the plan's steps
        for span in run.plan:
            end += span.steps
            while reached < end:
                if at == len(parts) or parts[at].event != span.event:
                    return reached - first
                reached = min(end, parts[at].end)
                at += reached == parts[at].end
        return reached - first

"""A run as its training script sees it: two lines, and every step is counted."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import index
from threading import RLock
from types import TracebackType
from typing import Any, Final, Self

from dpledger_client import loaders, sweeps
from dpledger_client.answers.runs import RunState
from dpledger_client.errors import BudgetExhausted, OutOfSequence
from dpledger_client.recording import run_ends
from dpledger_client.recording.branch_writer import Journal, Mode, read_content
from dpledger_client.recording.certified_epsilon import with_guarantee
from dpledger_client.recording.outbox import FINDINGS, LOG, RELEASES, Opening
from dpledger_client.training import checkpoints, distributed, findings
from dpledger_client.training.batch_size_check import LEVEL, SamplingContradicted, Sizes
from dpledger_client.training.declaration import Declaration, count_of
from dpledger_client.training.distributed import Broadcast, Follower
from dpledger_client.training.readings import RunReadings
from dpledger_client.transport import Transport


class Run(RunReadings):
    """One run, open for writing, by `start_run`. Safe to share between threads.

    `step` is called before each step that adds noise: once it returns, the step is counted.
    """

    def __init__(
        self,
        transport: Transport,
        opening: Opening,
        open_journal: Callable[[Opening], Journal],
        *,
        mode: Mode,
        mechanism: Mapping[str, Any] | None,
        sampling: Mapping[str, Any] | None,
        dataset_size: int | None,
        rank: int,
        world_size: int,
        broadcast: Broadcast | None,
        share_verdict: bool,
    ) -> None:
        self.name = opening.run_name
        self.dataset = str(opening.run["dataset"])
        self.mode: Final = mode
        self.rank = rank
        self.world_size: Final = world_size
        self.dataset_size = dataset_size
        self.url: Final = f"{transport.base_url}/v1/runs/{self.name}"
        self._transport = transport
        self._open_journal = open_journal
        self._broadcast = broadcast
        self._share_verdict = share_verdict
        self._declared = Declaration(mechanism, sampling, dataset_size=dataset_size)
        self._stepping = RLock()
        self._sizes = Sizes()
        self._closed = False
        self._configured = False
        self._refused = False  # whether a budget refused the step that would come next
        self._same_branch = False  # whether all ranks have its name from rank 0
        self._horizon = 0  # steps below it were admitted for `_admitted`, on all ranks
        self._admitted: str | None = None
        self._writer = self._opened(opening)

    selection = sweeps.selection

    def __repr__(self) -> str:
        return f"Run(name={self.name!r}, branch={self.branch!r}, next_step={self.next_step})"

    @property
    def branch(self) -> str:
        """The branch that is written to; a rewind opens another."""
        return self._writer.opening.branch_name

    @property
    def next_step(self) -> int:
        """The number that the next step gets."""
        return self._writer.next_step

    @property
    def mechanism(self) -> dict[str, Any] | None:
        """What the next step is by default."""
        return self._declared.mechanism

    @property
    def sampling(self) -> dict[str, Any] | None:
        """Who joins the next step by default."""
        return self._declared.sampling

    @property
    def spool(self) -> str | None:
        """Where the spool of the branch is; none on the ranks that do not report."""
        return None if self._writer.path is None else str(self._writer.path)

    @property
    def admits_ahead(self) -> bool:
        """Whether `admit` holds steps that can be given back; in a strict run it spends them."""
        opening = self._writer.opening
        # Whether a plan holds the budget is what rank 0 alone is told, if the run was resumed.
        unsure = self.world_size > 1 and (opening.branch is not None or "plan" in opening.run)
        return self._writer.mode != "strict" and not unsure

    def declare(
        self,
        *,
        mechanism: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """Say what steps are from the next one on, unless `step` says otherwise."""
        with self._stepping:
            self._declared = self._declared.changed(mechanism, sampling)

    def watch(self, loader: Any, *, accumulation: int = 1) -> loaders.Finding:
        """Compare what was declared with what a loader does by its classes and settings.

        Names and settings are told to the service. If they contradict the declaration, the next
        steps are recorded as what was found, with a warning.

        Args:
            loader: of batches, such as a PyTorch DataLoader.
            accumulation: batches of the loader in one step, >= 1.

        Raises:
            ValueError: the dataset's size is not known; or no sampling covers what the loader does.
        """
        if self.dataset_size is None:
            raise ValueError("Checking a loader needs dataset_size; give it.")
        finding = loaders.inspect(
            loader,
            declared=self._declared.sampling,
            dataset_size=self.dataset_size,
            accumulation=accumulation,
        )
        loaders.require_shares(finding, self.world_size)
        self.declare(sampling=finding.sampling)
        if finding.note:
            LOG.warning("dpledger: %s", finding.note)
        if not self.rank:
            self._writer.tell(FINDINGS, findings.of_sampling(finding, from_step=self.next_step))
        if finding.status == "contradicted":
            warnings.warn(
                f"dpledger: {finding.reason} The steps are recorded as {finding.sampling['kind']}.",
                SamplingContradicted,
                stacklevel=2,
            )
        return finding

    def step(
        self,
        *,
        mechanism: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        steps: int = 1,
        size: int | None = None,
    ) -> None:
        """Count some equal steps that are about to be taken. When it raises, do not take them.

        Args:
            mechanism: the noise of each step, such as `gaussian(...)`; by default as declared.
            sampling: who joins each step, such as `poisson(...)`; by default as declared.
            steps: how many, >= 1.
            size: of the batch as it was drawn, in records; for each step or none. It is private,
                stays in this process, and is tested against the sampling; a refutation is a
                SamplingContradicted warning.

        Raises:
            BudgetExhausted: the steps do not fit in a budget. The run stays usable.
            UnsupportedEvent: no accepted theorem bounds them.
            Unavailable: the service had to be asked, and was away for too long.
            OSError: the spool cannot be written, for instance because the disk is full.
            DPLedgerError, TypeError, ValueError: anything else; nothing was counted.
        """
        with self._stepping:
            usual = self._admitted if mechanism is None is sampling and size is None else None
            if (
                usual is not None
                and steps == 1
                and usual == self._declared.default
                and self._writer.take_next(usual, self._horizon)
            ):
                return
            content, steps = self._declared.content(mechanism, sampling), count_of(steps)
            of = 0 if size is None else self._sizes.checked(size, self.dataset_size)
            if self._writer.next_step + steps > self._horizon or content != self._admitted:
                self._admit(content, steps)
            if size is not None:  # only now: a batch that was refused comes again
                self._sizes.observe(content, size, of)
            self._writer.take(content, steps)

    def admit(self, steps: int = 1) -> None:
        """Ask for the next steps without counting them; it raises as `step` does."""
        with self._stepping:
            content, steps = self._declared.content(None, None), count_of(steps)
            if self.next_step + steps > self._horizon or content != self._admitted:
                self._admit(content, steps)

    def release(self, step: int | None = None) -> None:
        """Report that an iterate was released: a checkpoint, a metric computed from it.

        In a run that hides its iterates, hiding ends up to there. After the end of the run it has
        no spool: repeat it if it could not be sent.

        Args:
            step: the iterate after this step; by default the last step that was taken.

        Raises:
            OutOfSequence: the step was not taken on this branch.
            DPLedgerError: it was not sent yet, or was refused.
        """
        step = self.next_step - 1 if step is None else int(index(step))
        if not self._writer.opening.first_step <= step < self.next_step:
            raise OutOfSequence({"title": f"Step {step} was not taken on this branch"}, 0)
        if not self.rank:
            self._writer.tell(RELEASES, {"step": step})
            self._writer.flush()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the run, as JSON: its place, and steps not confirmed yet."""
        with self._stepping:
            writer = self._writer
            return checkpoints.token(writer.opening, writer.next_step, writer.unsent())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of this run. Nothing is taken back: a rewind opens a branch.

        When it raises, the run is where it was, and goes on counting there.

        Raises:
            ValueError: it is no state of this run. Go on with another run by `start_run(state=)`.
            DPLedgerError: steps could not be sent, or the branch could not be opened.
        """
        state = checkpoints.checked(state)
        if state["run"] != self.name:
            raise ValueError(f"state is of run {state['run']}, and this is {self.name}.")
        with self._stepping:
            self._horizon, self._admitted = 0, None  # all ranks ask together at the next step
            here = (state["branch"], state["next_step"]) == (self.branch, self.next_step)
            if here and self._writer.ended is None:
                return
            self.flush()
            left = self._writer
            opening = checkpoints.opening_of(state, left.opening.schedule)
            self._writer = self._opened(replace(opening, ended=left.earlier_end))
            self._same_branch = self._closed = self._refused = False
            self._sizes.restart()
            left.leave("rewound")

    def finish(self, state: run_ends.End | None = None) -> RunState | None:
        """Send what is left, return what was leased, and close the run.

        A run that ended can go on later, on a new branch: `start_run(resume=)` or `state=`.
        A service that is away is no error here, as training is over: the spool keeps what is left
        for `dpledger-client sync`, and a warning says so.

        Args:
            state: finished, stopped_at_budget, aborted (given up for good), or interrupted (not
                over). Default: stopped_at_budget if a budget refused the last step, else finished;
                but a run that had ended and was resumed without a step keeps the end it had.

        Returns:
            The run at its end; under "guarantee" its certified epsilon with both ends, None without
            a delta. None if the service is away, and on the ranks that do not report.

        Raises:
            DPLedgerError: something was refused; the spool keeps it.
        """
        ended = with_guarantee(self, self._close(state or self._end_of(None)))
        return None if ended is None else RunState(ended)

    def _end_of(self, error: BaseException | None) -> str:
        earlier = self._writer.earlier_end
        return run_ends.end_of(error, refused=self._refused, earlier=earlier)

    def _close(self, state: str) -> dict[str, Any] | None:
        with self._stepping:
            self._closed = True
            self._tell_verdict()
            return run_ends.close(self._writer, state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._closed:
            return
        try:
            self._close(self._end_of(error))
        except Exception as failure:  # whatever it is, the block's own error is the one to raise
            if error is None:
                raise
            error.add_note(
                f"dpledger: run {self.name} could not be closed: {failure}. "
                f"Steps not sent: {self.unsent_steps}; they are in {self.spool}."
            )

    def _opened(self, opening: Opening) -> Journal | Follower:
        ranked = (
            Follower(self._transport, opening, self.mode)
            if self.rank
            else self._open_journal(opening)
        )
        ranked.open()
        return ranked

    def _admit(self, content: str, steps: int) -> None:
        # A refusal, too, may have given back what was admitted before.
        self._horizon, self._admitted = 0, None
        if self._broadcast is not None and not self._same_branch:
            self._writer.opening = distributed.same_branch(self._broadcast, self._writer.opening)
            self._same_branch = True
        broadcast = None if self.mode == "observe" else self._broadcast
        try:
            self._horizon = distributed.agree(
                broadcast, self.rank, lambda: self._ask(content, steps)
            )
        except BudgetExhausted as refusal:
            self._refused = True
            refusal.problem |= {"run": self.name, "steps_taken": self.next_step}
            raise refusal.with_traceback(None) from None  # it is an answer, not a fault
        self._refused, self._admitted = False, content

    def _ask(self, content: str, steps: int) -> int:
        self._tell_configuration(content)
        return self._writer.admit(content, steps)

    def _tell_configuration(self, content: str) -> None:
        """Each rank of a job says once how it was configured."""
        if self._configured or self.world_size == 1:
            return
        self._configured = True
        configuration = {"dataset": self.dataset, "mode": self.mode, **read_content(content)}
        self._writer.tell(FINDINGS, findings.of_rank(self.rank, self.world_size, configuration))

    def _tell_verdict(self) -> None:
        """Only if the trainer opted in, and once: it depends on who is in the data."""
        if self._share_verdict and self._sizes.verdict is not None and not self.rank:
            self._share_verdict = False
            self._writer.tell(FINDINGS, findings.of_batch_sizes(self._sizes.verdict, LEVEL))

"""Which batches make a step of Opacus' optimizer, and where in its pass the loader is."""

import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from opacus.utils.batch_memory_manager import BatchSplittingSampler

_SPLITTER: Final = BatchSplittingSampler.__iter__.__code__


class Batches:
    """The batches that the next step sums, as far as its optimizer has them.

    A loader is heard when an iteration begins; one that BatchMemoryManager rebuilt is heard by the
    signals that it gives the optimizer. Nothing of a batch is looked at.

    Args:
        loader: a DataLoader of PyTorch.
        pending: whether the optimizer has gradients that are in no sum yet.

    Raises:
        ValueError: the loader is another one.
    """

    def __init__(self, loader: Any, pending: Callable[[], bool]) -> None:
        self.passes = 0  # begun so far
        self._steps = 0  # taken in this pass
        self._open = 0  # of them and of earlier ones, in the pass that the ledger has open
        self._in_step = True  # with the ledger
        self._held: list[tuple[int, int]] = []  # batch and pass
        self._pending = pending
        self._left: list[int] = []  # passes that ended with gradients in no sum
        self._repeated = 0
        self._number = 0
        self._given = 0  # by the loader since the last step
        self._split: set[int] = set()  # those of `_held` that a splitter drew
        # Numbers of batches whose parts are on their way, and whether a splitter drew them.
        self._signalled: deque[tuple[int, bool]] = deque()
        self._splitter: FrameType | None = None
        self._ended = True  # the splitter is between two batches
        _listen(loader, self._begin, self._give)

    @property
    def draws(self) -> int:
        """How many batches of the loader the next step sums."""
        return len({batch for batch, _ in self._held}) + self._repeated

    @property
    def given(self) -> int:
        """How many batches the loader gave for the next step; some may be in no sum."""
        return self._given + len(self._split)

    @property
    def passes_touched(self) -> int:
        """From how many passes they come."""
        return len({number for _, number in self._held})

    def signal(self, frame: FrameType, *, skip: bool) -> None:
        """The optimizer is told about a part to come: by a splitter, or by the script itself.

        Raises:
            ValueError: an iteration was left with parts on their way, for which Opacus then takes
                parts of other batches.
        """
        split = is_splitter(frame)
        if not split:
            self._number += 1
        else:
            if frame is not self._splitter:
                if self._signalled:
                    raise ValueError(
                        "A loop over BatchMemoryManager's loader was left early, and Opacus takes "
                        "the signals of its last parts for those of others: end the pass, or empty "
                        "optimizer._step_skip_queue and attach anew."
                    )
                self._splitter, self._ended = frame, True
                self._begin()
            self._number += self._ended
            self._ended = not skip
        self._signalled.append((self._number, split))

    def hold(self, backward_passes: int) -> None:
        """A part was added to the sum."""
        if self._signalled:
            number, split = self._signalled.popleft()
            self._split |= {number} if split else set()
        else:
            self._number += 1
            number = self._number
        self._held += [(number, of_pass) for of_pass in (*self._left, self.passes)]
        self._left.clear()
        self._repeated += backward_passes - 1

    def drop(self) -> None:
        """The sum was used, or cleared."""
        self._given = max(0, self._given - (self.draws - len(self._split)))
        self._split.clear()
        self._held.clear()
        self._left.clear()
        self._repeated = 0

    def in_its_place(self, draws_of: Callable[[int], int]) -> bool:
        """Whether the next step is where in its pass the ledger takes it to be.

        Args:
            draws_of: batches of the step at a place of a pass; 0 behind its end.
        """
        return self._in_step and self.draws == draws_of(self._steps)

    def taken(self, *, in_place: bool, steps_per_pass: int) -> None:
        """The step was counted, as one of a pass or as one that no order hides."""
        self._steps += 1
        self._in_step = in_place
        self._open = (self._open + 1) % steps_per_pass if in_place else 0
        self.drop()
        self._given = 0

    def branched(self) -> None:
        """The ledger opened a branch, and a pass with it; the loader may be in mid-pass."""
        self._open = 0
        self._in_step = False

    def _begin(self) -> None:
        if self._pending():
            self._left.append(self.passes)
        self._put_away()
        self.passes += 1
        self._steps = 0
        self._in_step = not self._open

    def _give(self, *, ended: bool) -> None:
        if ended:
            self._put_away()
        else:
            self._given += 1

    def _put_away(self) -> None:
        """What an iteration gave to no gradient was looked at, for instance for a metric."""
        if not self._pending():
            self._given = min(self._given, self.draws - len(self._split))


def is_splitter(frame: FrameType) -> bool:
    """Whether BatchMemoryManager runs there, as it gives a loader's batches in parts."""
    return frame.f_code is _SPLITTER


def _listen(loader: Any, begin: Callable[[], None], give: Callable[..., None]) -> None:
    """Hear when an iteration begins, gives a batch and ends, without changing what it yields.

    Raises:
        ValueError: it is no DataLoader of PyTorch.
    """
    if not hasattr(loader, "_get_iterator"):
        raise ValueError("Steps are counted only with a DataLoader of PyTorch.")
    start = loader._get_iterator

    def started() -> Any:
        iterator = start()
        _hear(iterator, give)
        begin()
        if getattr(loader, "persistent_workers", False):
            reset = iterator._reset

            def started_again(*arguments: Any, **options: Any) -> None:
                reset(*arguments, **options)
                begin()

            iterator._reset = started_again
        return iterator

    loader._get_iterator = started


def _hear(iterator: Any, give: Callable[..., None]) -> None:
    following = type(iterator)._next_data
    held = weakref.ref(iterator)  # one that holds itself would keep its workers

    def given() -> Any:
        try:
            batch = following(held())
        except StopIteration:
            give(ended=True)
            raise
        give(ended=False)
        return batch

    iterator._next_data = given

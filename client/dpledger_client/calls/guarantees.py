"""The calls of a client about runs and what they have spent: guarantees, certificates, ledgers."""

from collections.abc import Iterator

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.certificates import SignedCertificate
from dpledger_client.answers.guarantees import Guarantee, History
from dpledger_client.answers.runs import RunState
from dpledger_client.names import path_of
from dpledger_client.transport import Transport


class GuaranteeCalls:
    """The calls of a `Client` that read runs."""

    _transport: Transport

    def run(self, name: str) -> RunState:
        """A run as it stands."""
        return RunState(self._transport.get(path_of("runs", name)))

    def runs(self, *, dataset: str | None = None, state: str | None = None) -> Iterator[RunState]:
        """Runs in creation order, of a dataset or in a state only."""
        return map(
            RunState, self._transport.listed("/v1/runs", "runs", dataset=dataset, state=state)
        )

    def guarantee(
        self,
        run: str,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        accountant: str | None = None,
    ) -> Guarantee:
        """What the recorded steps of a run have spent, over all its branches.

        Args:
            run: its name.
            delta: in (0, 1); by default the run's, else that of the dataset's budget.
            epsilon: nats; ask for the delta at this epsilon instead.
            accountant: by default the best.
        """
        query = {"delta": delta, "epsilon": epsilon, "accountant": accountant}
        return Guarantee(self._transport.guarantee(path_of("runs", run, "/guarantee"), **query))

    def history(
        self, run: str, *, points: int | None = None, delta: float | None = None
    ) -> History:
        """Epsilon (nats, upper and lower) by step, at no more than so many points."""
        path = path_of("runs", run, "/history")
        return History(self._transport.get(path, points=points, delta=delta))

    def ledger(self, run: str) -> Answer:
        """The run's ledger document, from which `dpledger epsilon` computes offline."""
        return Answer(self._transport.get(path_of("runs", run, "/ledger")))

    def certificate(
        self, run: str, *, delta: float | None = None, model_sha256: str | None = None
    ) -> SignedCertificate:
        """The signed certificate of a run; `save(path)` writes the file for `dpledger verify`.

        Args:
            run: its name.
            delta: in (0, 1); by default the run's, else that of the dataset's budget.
            model_sha256: digest of the model's file, in hexadecimal; it is certified, too.

        Raises:
            Unavailable: the service has no signing key, or its ledger is suspended.
        """
        return self._certified("runs", run, delta, model_sha256)

    def dataset_certificate(
        self, dataset: str, *, delta: float | None = None, model_sha256: str | None = None
    ) -> SignedCertificate:
        """The signed certificate of all runs of a dataset; arguments as in `certificate`."""
        return self._certified("datasets", dataset, delta, model_sha256)

    def _certified(
        self, noun: str, name: str, delta: float | None, model_sha256: str | None
    ) -> SignedCertificate:
        path = path_of(noun, name, "/certificate")
        return SignedCertificate(self._transport.get(path, delta=delta, model_sha256=model_sha256))

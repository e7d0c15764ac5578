"""The state of a Flower accountant, read as ledger events.

Flower counts clients: a record of the ledger is a client, and the dataset is all of them.
"""

from typing import Any, Final, NamedTuple

from dpledger_client import schemas
from dpledger_client.importers.bounded_reader import (
    FilePath,
    count,
    json_of,
    mapping,
    real,
    refuse,
    rows,
)
from dpledger_client.importers.event_fields import NOISE_RANGE
from dpledger_client.importers.samplings import RECORDS_MAX

VERSION: Final = 1  # of the states that are known here
STATE: Final = ("schema_version", "backend", "config", "orders", "compositions")
CONFIG: Final = (
    "target_delta", "population_size", "neighboring_relation", "sampling_method", "max_epsilon",
)  # fmt: skip
EVENT: Final = ("noise_multiplier", "sample_size", "population_size")
RELATIONS: Final = {
    "add-or-remove-one": "add_or_remove_one",
    "replace-one": "replace_one",
}
METHODS: Final = ("poisson", "without-replacement", "no-amplification")


class State(NamedTuple):
    """What a state says.

    Attributes:
        events: without first_step.
        neighboring_relation: the one that Flower accounted under, of clients.
        dataset_size: clients.
    """

    events: list[dict[str, Any]]
    neighboring_relation: str
    dataset_size: int


def read_state(path: FilePath, *, sampling: dict[str, Any] | None = None) -> State:
    """What the JSON of an accountant's `state_dict()` says.

    Args:
        path: the file.
        sampling: how clients were sampled, whatever the state says.

    Raises:
        BadFile: the file is anything else; names the place.
    """
    state = mapping("the state", json_of(path), STATE)
    if state["schema_version"] != VERSION or state["backend"] != "rdp":
        refuse("schema_version", f"must be {VERSION}, of the backend rdp")
    config = mapping("config", state["config"], CONFIG)
    clients = count("config.population_size", config["population_size"], RECORDS_MAX)
    relation, method = config["neighboring_relation"], config["sampling_method"]
    if not isinstance(relation, str) or relation not in RELATIONS:
        refuse("config.neighboring_relation", f"must be one of {', '.join(RELATIONS)}")
    if method not in METHODS:
        refuse("config.sampling_method", f"must be one of {', '.join(METHODS)}")
    found = rows("compositions", state["compositions"])
    if not found:
        refuse("compositions", "is empty")
    events = [
        _event(f"compositions[{number}]", one, clients, method, sampling)
        for number, one in enumerate(found)
    ]
    return State(events, RELATIONS[relation], clients)


def read(path: FilePath, *, sampling: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The events of the state alone; see `read_state`.

    Raises:
        BadFile: the file is anything else.
    """
    return read_state(path, sampling=sampling).events


def _event(
    place: str, composition: Any, clients: int, method: str, sampling: dict[str, Any] | None
) -> dict[str, Any]:
    found = mapping(place, composition, ("event", "count"))
    one = mapping(f"{place}.event", found["event"], EVENT)
    if one["population_size"] != clients:
        refuse(f"{place}.event.population_size", "must be that of the config")
    size = count(f"{place}.event.sample_size", one["sample_size"], clients)
    noise = real(f"{place}.event.noise_multiplier", one["noise_multiplier"], *NOISE_RANGE)
    return schemas.event(
        mechanism=schemas.gaussian(noise_multiplier=noise),
        sampling=_sampling(method, size, clients) if sampling is None else sampling,
        steps=count(f"{place}.count", found["count"]),
    )


def _sampling(method: str, size: int, clients: int) -> dict[str, Any]:
    match method:
        case "poisson":
            return schemas.poisson(sampling_probability=size / clients)
        case "without-replacement":
            return schemas.fixed_size(batch_size=size)
        case _:
            # Who joined is told: as if all had. Where one client makes room for another the
            # sum moves by twice the norm bound, which Flower's own accounting leaves out.
            return schemas.fixed_size(batch_size=clients)

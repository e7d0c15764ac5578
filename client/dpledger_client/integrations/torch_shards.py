"""Parameters that FSDP shards over the ranks of a job: what noise theirs is."""

from collections.abc import Sequence
from typing import Any, Final

import torch.distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

_UNKNOWN: Final = object()
_SHARDS: Final = (
    "The noise of sharded gradients is told only where each parameter has one shard on each rank, "
    "and FSDP averages gradients over the ranks: use opacus.utils.fsdp_utils.FSDP2Wrapper with its "
    "own mesh, ignore no parameter, and set no gradient_divide_factor."
)


def refuse_other_shards(module: Any, parameters: Sequence[Any]) -> None:
    """See that FSDP divides gradients and noise by the same number, the ranks of the job.

    Opacus draws noise for each shard on its rank, of noise_multiplier * max_grad_norm / ranks: as
    much as a record moves the average, unless FSDP sums or copies gradients.

    Args:
        module: that was wrapped.
        parameters: that are trained.

    Raises:
        ValueError: it may divide them otherwise.
    """
    ranks = torch.distributed.get_world_size()
    apart = all(
        isinstance(one, DTensor)
        and one.device_mesh.ndim == 1
        and one.device_mesh.size() == ranks
        and isinstance(one.placements[0], Shard)
        for one in parameters
    )
    shards = [one for one in module.modules() if isinstance(one, FSDPModule)]
    if not (apart and shards and all(map(_averages, shards))):
        raise ValueError(_SHARDS)


def _averages(module: FSDPModule) -> bool:
    """Whether a module leaves gradients to FSDP's own average; unknown is no."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        group = getattr(state, "_fsdp_param_group", _UNKNOWN)
        groups = [] if group is None else [group]
    return all(getattr(one, "gradient_divide_factor", _UNKNOWN) is None for one in groups)

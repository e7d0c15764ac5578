from accounting.pld.pairs import GaussianPair
from accounting.renyi.passes import gaussian_per_pass_rdp as g

allocation_pair = g
random_allocation_pairs = g


def allocation_floor(*, noise_multiplier, steps_per_pass, steps):
    return GaussianPair(noise_multiplier=noise_multiplier * 100)


THEOREMS = ()

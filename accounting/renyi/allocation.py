from accounting.renyi.passes import gaussian_per_pass_rdp as g

allocation_rdp = g
random_allocation_rdp = g
THEOREMS = ()

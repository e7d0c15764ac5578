"""From event counts to one bound: each accountant, and which bound is the best."""

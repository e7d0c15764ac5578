"""Scripts whose noise is calibrated to the budget; every step of them runs."""

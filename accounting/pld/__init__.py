"""Privacy loss distributions: dominating pairs, and certified brackets for their compositions."""

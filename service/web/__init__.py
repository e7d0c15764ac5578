"""HTTP: endpoints, pages, limits and refusals."""

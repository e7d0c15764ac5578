"""The chart, rendered by Helm's own code, and other manifests against schemas: make test-deploy."""

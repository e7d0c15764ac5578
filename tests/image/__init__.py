"""The image, built and started without a container engine: make test-image."""

"""Clients that are generated from the OpenAPI document: each must be able to charge a step."""

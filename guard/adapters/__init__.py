"""Adapters: one module for each way of running tools, imported by name."""

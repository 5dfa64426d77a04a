"""Environments by name; each module is registered as an entry point, the way a third party's would be."""

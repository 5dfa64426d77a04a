"""Agents that come with rlpad; each registers as a third party's would."""

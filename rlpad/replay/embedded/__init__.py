"""Replay in NumPy: seeded, in-process or served through rlpad's RPC."""

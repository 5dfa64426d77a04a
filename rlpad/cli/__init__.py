"""The `rlpad` command: one module per subcommand."""

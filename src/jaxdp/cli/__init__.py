"""Commands: flags, exit codes and standard streams."""

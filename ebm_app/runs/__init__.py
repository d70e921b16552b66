"""What every script shares: command line, processes, interrupts and files."""

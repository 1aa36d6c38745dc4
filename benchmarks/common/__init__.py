"""What benchmarks share: settings, loads, tables, the machine's description."""

"""Planning with what earlier runs and device profiles taught."""

"""What a program can name where, and of which type."""

"""What the operators of one run of a program share."""

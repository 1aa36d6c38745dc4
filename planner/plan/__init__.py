"""What a plan is: operators, logical and physical plans, what they read, and what every plan satisfies."""

"""A physical plan through the rules, then the choice between alternatives by cost."""

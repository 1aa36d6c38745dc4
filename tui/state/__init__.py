"""What the events of a run add up to, without a screen: the screens and the report are drawn from it."""

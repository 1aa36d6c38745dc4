"""The operators between rows, one function each: context, score, judge, columns, relations, vote."""

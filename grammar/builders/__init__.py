"""Parse tree to syntax tree.

Open `tree.py` first: it goes through a parse tree from the leaves up and gives each node to the builder of its rule. A
builder is named for what it builds. It has a method for each rule of `qp.lark` of that kind, with the rule's name; the
method is called with the span of the text and with what the node's children became. Builders hold references to each
other, and all report to the same `Faults`.

The grammar leaves much open, and the builders check it: which options a stage takes, each at most once; what the
arguments of forms mean; regexes and strings. Nothing is raised here. A faulty option is left out and its stage kept, so
that the checker can go on. Names and types are not looked up here: the planner does that.
"""

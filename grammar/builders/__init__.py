"""Parse tree to syntax tree.

Open `tree.py` first: it goes through a parse tree from the leaves up and gives each node to the method of its rule. The
builder of a text is one object, and each file has the methods of one kind of nodes, one for each rule of `qp.lark` of
that kind, with the rule's name; a method is called with the span of the text and with what the node's children became.
A class builds on those whose methods it calls, and `Faults` is under all.

The grammar leaves much open, and the builders check it: which options a stage takes, each at most once; what the
arguments of forms mean; regexes and strings. Nothing is raised here. A faulty option is left out and its stage kept, so
that the checker can go on. Names and types are not looked up here: the planner does that.
"""

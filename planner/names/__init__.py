"""Names and their types: what a program can name at a point, and what each name stands for.

Start with `scope.py` (the columns and parameters at a point) and `types.py` (the types of expressions). `modules.py`
holds the declarations of a file and of the files that it uses, `schemas.py` compiles schemas to JSON Schema
(`json_schema.py`), which `constraint_schema.py` writes for llguidance and `constraints.py` has it accept, and
`substitute.py` puts arguments in the place of parameters. Nothing here goes through the stages of a pipeline in order;
`planner/check` does that.
"""

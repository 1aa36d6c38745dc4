"""Names and their types: what a program can name at a point, and what each name stands for.

Start with `scope.py` (the columns and parameters at a point) and `types.py` (the types of expressions). `modules.py`
holds the declarations of a file and of the files that it uses, and what each model can be used as; `parameters.py`
what a program's parameters are. `schemas.py` compiles schemas to JSON Schema (`json_schema.py`), which
`constraint_schema.py` writes for llguidance and `constraints.py` has it accept. `substitute.py` puts arguments in the
place of parameters, and `unknown.py` says what a name that nothing declares may have been meant for. Nothing here goes
through the stages of a pipeline in order; `planner/check` does that.
"""

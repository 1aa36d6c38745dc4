"""What a model takes on a piece of hardware, by arithmetic alone: memory, users, and what bounds a step.

Open `roofline_report.py` first: everything that `qpdsl profile --roofline` says, as data. `architecture.py` holds the
numbers of a model, `hardware.py` those of the hardware (`hardware.json`, each with its source). `roofline.py` parts
the memory into weights, activations, other and blocks of keys and values, counts the users, and has the operations and
bytes of a step. `published_models.json` has the configurations of a
few models by their public names, for tables of models that are not on this machine.

Nothing here loads torch or measures anything; `executor/measure/outline.py` reads the numbers of a model off its
configuration, and `planner/cost/` estimates programs on a device that was measured. Amounts are in bytes, rates in
bytes and floating-point operations a second.
"""

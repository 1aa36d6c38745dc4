"""The two tasks that the built-in models know: counting problems and record extraction.

Start with `counting`: problems, their canonical solutions, and a checker that judges every step exactly, in any order
that a story allows. `stories` writes the texts in five levels; `wrong_solutions` makes mistakes and says what was
intended; `thoughts` works equations out digit by digit. `records` has the notes with their JSON records and schemas.
`held_out` decides by a hash of a text whether it is held out, so that training and evaluation never share a task.
Standard library only, so that this loads without torch.
"""

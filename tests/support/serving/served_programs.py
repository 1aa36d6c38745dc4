"""The programs that tests serve, and what they ask them."""

from __future__ import annotations

JSON = {"content-type": "application/json"}
QUESTION = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
NOTE = "Order: 3 pens and 2 cups for Ann, express."
PROGRAMS = """\
model llm = "zoo/counting"

program say_it(problem: text, heat: float = 0.8) -> text {
  chat user=problem
  generate llm temperature=heat max_tokens=256
}

program cut_short(problem: text) -> text {
  chat user=problem
  generate llm temperature=0 max_tokens=4
}

program reply(history: messages, question: text) -> text {
  chat messages=history user=question
  generate llm max_tokens=64
}

program talk(turns: messages, temperature: float = 1) -> text {
  chat messages=turns
  generate llm temperature=temperature max_tokens=64
}

program instructed(problem: text, system: text = "") -> text {
  chat user="{system}{problem}"
  generate llm temperature=0 max_tokens=64
}

program slow(problem: text, n: int = 512) -> text {
  chat user=problem
  generate llm n=n temperature=50 max_tokens=256
  keep 1 by len(text)
  return text
}

program nothing(problem: text) -> text {
  chat user=problem
  generate llm temperature=0 max_tokens=4
  where finished
  return text
}

schema Number {
  number: int(0..999)
}

program named_record(problem: text) {
  chat user=problem
  generate llm as Number into found
  return found
}

program voted_record(problem: text) -> Number {
  chat user=problem
  generate llm as Number n=3 into found
  let number = found.number
  vote number
  return found
}

program later_record(problem: text) -> Number {
  chat user=problem
  generate llm max_tokens=16
  chat user="As a record."
  generate llm as Number into found
  return found
}
"""

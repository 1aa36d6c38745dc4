"""Between text and token ids: contexts, detokenization, stop strings, constraints. The engine knows ids only.

Open `context.py` first: it encodes contexts by a chat template, which `chat_template.py` renders within bounds and
`thinking.py` asks how its model thinks. Tokenizers are transformers', or give the same without it
(`quick_tokenizer.py`); `text_tokenizer.py` is what is asked of both. No text that the program's author did not write
ever becomes a special token, so an input cannot forge a turn; where there is nothing to forge, the ids are exactly
those of `apply_chat_template`. Tokens become text in `detokenizer.py` alone, which keeps a letter apart that is only
begun. Work between two forwards is not repeated: a `Detokenizer` decodes a token after the token before it once for all
samples of a model, a `ResumedEncoder` encodes a text that continues an earlier one from where it continues, and
templates are rendered once for their roles. `stop.py` ends a sample by its text, and `constraint.py` compiles a schema,
a regex or a grammar once for each tokenizer and makes a mask for each sample, which applies before temperature and
filters. The ids that a mask forces are those for which it allows one id alone, so a step
may take them without the model; records are spaced in one way, so that what is between their values is forced. An
output that ends before it satisfies its constraint is marked on its row (`Generated.incomplete`); no `extract`,
`return` or function takes it for a valid one.
"""

"""The language server: diagnostics, hover texts, completion, definitions, references, new names and formatting.

Start with `server.py`, which answers requests from a `Document` (`document.py`): a parsed and checked text with the
columns after every stage. The checker is the same as the command line's, and it runs on programs with
errors too. At the caret, completion checks the text before the statement, with the open blocks closed. No model is
loaded here. pygls comes with the extra `lsp`, so only `qpdsl lsp` may import this folder.
"""

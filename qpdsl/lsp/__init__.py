"""The language server: what an editor shows of a program. It loads no model; pygls comes with the extra `lsp`."""

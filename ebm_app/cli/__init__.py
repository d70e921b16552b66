"""Commands of the ``ebm`` program, one module each."""

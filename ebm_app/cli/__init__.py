"""Commands of the ``ebm`` program, one module each; the scripts of a checkout run them too."""

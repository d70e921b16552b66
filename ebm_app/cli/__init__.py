"""The commands of ``ebm`` after an installation; the scripts of a checkout are the same."""

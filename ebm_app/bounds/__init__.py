"""The error bounds of the paper, term by term (arXiv:2502.02300, section 5 and appendix D)."""

"""The paper's tables of density ratios and mutual information."""

"""The tab that trains density ratios in the plane."""

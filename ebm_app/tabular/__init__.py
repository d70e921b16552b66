"""What the rows of a user say: mutual information, and the log density ratio of two samples."""

"""What a time score is trained on."""

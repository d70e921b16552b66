"""The models that a user holds: ``EBM`` and ``Flow``, and their bits on many images."""

"""``bertpt doctor``: what a run's own records say of its health."""

"""Many runs that belong together: a grid of options becomes specifications, and workers make them."""

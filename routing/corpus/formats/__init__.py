"""What rows of other people's files mean, one module for a family of formats; `registry` lists them all."""

"""The commands of `fastmax-lab`: dataclasses of options, which tyro parses, with a method that runs them."""

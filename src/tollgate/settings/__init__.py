"""How a TOML file and `TOLLGATE_…` variables become the `Settings` of `settings/model.py`.

file         which file, what wins over what, one error with every problem and its place
environment  variables -> values
lines        which line of a TOML file a key is on
check        unknown keys, types, bounds
rules        what one setting demands beyond its type
providers    shorthands for providers' addresses
changes      what may change in place, and the words for it
schema       the settings as a list: key, type in words, default, variable, help
mask         effective values, secrets hidden
model        the settings themselves
"""

"""What each family's methods mean.

catalogue  kinds of methods, and the catalogue of a family by name
eth        the methods of `eth`, as a table
starknet   the methods of `starknet`, as a table
"""

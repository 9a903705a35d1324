"""Of the control data."""

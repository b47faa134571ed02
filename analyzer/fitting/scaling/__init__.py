"""A step's memory as a function of one size of what it is fed, such as its batch."""

"""How variables come to be, without the memory that they would take."""

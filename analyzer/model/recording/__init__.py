"""The recording: tables of events and allocations, and sums over them."""

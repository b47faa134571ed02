"""Many calls that do not know of each other, run on the local cores or on a Dask cluster."""

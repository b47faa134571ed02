"""Columnar reading of protobuf's wire format: one field of many messages at once."""

"""Protobuf's wire format read in columns: a field of many messages at once."""

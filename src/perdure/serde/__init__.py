"""Values to bytes and back, strictly: loading a row never runs code.

codec          values to MessagePack and back; what is not allowed is refused
builtin_types  the standard library's and numpy's types
class_types    dataclasses, enums, namedtuples and the like; the adapter of a class
pydantic_types Pydantic models
class_adapter  what the adapters share
depth          how deep a document is nested: deeper ones are refused
places         which columns of its row a blob is bound to
encryption     the envelope around each blob: a checksum, or authenticated encryption
serializer     codec and envelope in one: a value to the blob of one row
redaction      secrets by name, and by policy: what is never stored
allowlist      the types that may be stored and loaded; any other is refused
"""

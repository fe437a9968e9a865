"""Values to bytes and back, strictly: loading a row never runs code.

codec          values to MessagePack and back; what is not allowed is refused
builtin_types  the standard library's and numpy's types
class_types    Pydantic models, dataclasses, enums and the like: state out of an object, and back
depth          how deep a document is nested: deeper ones are refused
places         which columns of its row a blob is bound to
encryption     the envelope around each blob: a checksum, or authenticated encryption
serializer     codec and envelope in one: a value to the blob of one row
redaction      secrets by name, and by policy: what is never stored
allowlist      the types that may be stored and loaded; any other is refused
"""

"""Values to bytes and back, strictly: loading a row never runs code.

serializer     values to MessagePack, to the blob of one row, and back; what is refused, by name
builtin_types  the standard library's and numpy's types
class_types    Pydantic models, dataclasses, enums and the like: state out of an object, and back
encryption     the envelope around each blob: a checksum, or encryption; what it is bound to
redaction      secrets by name, and by policy: what is never stored
allowlist      the types that may be stored and loaded; any other is refused
"""

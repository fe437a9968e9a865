"""Values to bytes and back, strictly: loading a row never runs code.

codec          values to MessagePack and back; what is not allowed is refused
builtin_types  the standard library's and numpy's types
class_types    dataclasses, Pydantic models, enums and the like
encryption     the envelope around each blob: a checksum, or authenticated encryption
serializer     codec and envelope in one: a value to the blob of one row
"""

"""A cursor over bytes of a foreign structure: fixed numbers, varints, text; always bounded."""

from __future__ import annotations

import struct

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads one field after the other; raises `ValueError` where the bytes end too soon."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self.data) - self.position

    def take(self, length: int) -> bytes:
        """Read the next bytes."""
        if not 0 <= length <= self.left:
            raise ValueError(f"{length} bytes are needed at {self.position}, {self.left} are left")
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def u8(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """Read two bytes, little-endian."""
        number: int = _U16.unpack(self.take(2))[0]
        return number

    def u32(self) -> int:
        """Read four bytes, little-endian."""
        number: int = _U32.unpack(self.take(4))[0]
        return number

    def u64(self) -> int:
        """Read eight bytes, little-endian."""
        number: int = _U64.unpack(self.take(8))[0]
        return number

    def uvarint(self) -> int:
        """Read unsigned LEB128, at most 64 bits."""
        number = shift = 0
        while True:
            byte = self.u8()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ValueError(f"a number at {self.position} does not end")
        if number >= 1 << 64:
            raise ValueError(f"a number at {self.position} is too large")
        return number

    def varint(self) -> int:
        """Read zig-zag, unsigned LEB128."""
        number = self.uvarint()
        return (number >> 1) ^ -(number & 1)

    def flag(self) -> bool:
        """Read one byte that is 0 or 1."""
        byte = self.u8()
        if byte > 1:
            raise ValueError(f"the byte at {self.position - 1} is {byte}, 0 or 1 is expected")
        return byte == 1

    def short(self) -> bytes:
        """Read bytes after their length as unsigned LEB128."""
        return self.take(self.uvarint())

    def long(self) -> bytes:
        """Read bytes after their length in four bytes."""
        return self.take(self.u32())

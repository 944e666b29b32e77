"""What the numba kernels need and numba hasn't: memory by address, an atomic counter, prefetches, bits of numbers.

Importing this imports numba. Arrays are made from addresses because those carry no reference counts, whose atomic
changes cost more than the arithmetic of a short row.
"""

# Intrinsics are written in LLVM's terms, which have no Python types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

_LONG, _INT, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_CACHE_LINE = 64


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@register_jitable
def array_at(address, size, dtype):
    """Return the array of `size` elements that begins at `address`."""
    return carray(_pointer(address), size, dtype)


@intrinsic
def fetch_add_one(typing_context, address):
    """Return the int64 at `address`, and add one to it, as one step of all threads'."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _LONG.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(_LONG, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def _prefetch_line(typing_context, address):
    def generate(context, builder, signature, arguments):
        anything = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [anything, _INT, _INT, _INT])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Read, into the second cache, data.
        builder.call(prefetch, [builder.inttoptr(arguments[0], anything), _INT(0), _INT(2), _INT(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@register_jitable
def prefetch(address, num_bytes):
    """Ask for memory that will be read soon. It may lie beyond what is there: nothing is read yet."""
    for line in range(0, num_bytes, _CACHE_LINE):
        _prefetch_line(address + line)


@intrinsic
def bits_of(typing_context, number):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _INT)

    return types.int32(types.float32), generate


@intrinsic
def number_of(typing_context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), generate


def widened(stored):
    """Return what is stored as float32: it is that already, or a bfloat16's bits as uint16."""
    raise NotImplementedError("compiled code only")


@overload(widened)
def _widened(stored):
    if stored == types.uint16:
        return lambda stored: number_of(np.int32(stored) << np.int32(16))
    return lambda stored: stored

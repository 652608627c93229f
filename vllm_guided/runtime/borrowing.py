"""A view of a numba struct that counts no references, neither to the struct nor to the arrays in it.

numba counts a reference, atomically, each time an array is read from a struct or the struct is passed on,
which was half of the time of functions that look at many tables. Here the struct has an owner, which Python
holds, and compiled code works on a view of it, a pointer. A field's array is borrowed: it comes without its
owner, and the struct alone keeps it alive. A field may be set to an array that owns its memory; the one that
it had before is only retired, since functions under way may still look at it, and is freed by ``settle``,
which is called where none is. Setting a field to what was read from it changes nothing.
"""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.extending import infer_getattr, lower_getattr_generic, lower_setattr_generic, register_model
from numba.core.typing.templates import AttributeTemplate
from numba.experimental import structref
from numba.extending import intrinsic

#: Addresses of owners that ``retired`` holds; what is retired beyond that frees the oldest at once, so it
#: must be more than one operation can retire (each doubles one of some hundred arrays).
RETIRED_LIMIT = 1 << 12


class View(types.Type):  # type: ignore[misc]
    """The type of views of structs of one type.

    The fields must have an array of int64 ``retired`` with RETIRED_LIMIT entries, set first, and a number
    ``retired_count``.
    """

    def __init__(self, name: str, owner: types.StructRef) -> None:
        super().__init__(name)
        self.owner = owner
        self.fields = owner.field_dict


@register_model(View)  # type: ignore[untyped-decorator]
class _Pointer(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: View) -> None:
        super().__init__(manager, kind, cgutils.voidptr_t)


@infer_getattr
class _Attribute(AttributeTemplate):  # type: ignore[misc]
    key = View

    def generic_resolve(self, view: View, name: str) -> Any:
        return view.fields.get(name)


def _data(context: Any, builder: Any, view: View, value: Any) -> Any:
    """Access to the fields."""
    kind = view.owner.get_data_type()
    pointer = builder.bitcast(value, context.data_model_manager[kind].get_value_type().as_pointer())
    return cgutils.create_struct_proxy(kind)(context, builder, ref=pointer)


@lower_getattr_generic(View)  # type: ignore[untyped-decorator]
def _get(context, builder, view, value, name):
    return _borrowed(context, builder, view.fields[name], getattr(_data(context, builder, view, value), name))


@lower_setattr_generic(View)  # type: ignore[untyped-decorator]
def _set(context, builder, signature, arguments, name):
    view, given = signature.args
    data = _data(context, builder, view, arguments[0])
    kind = view.fields[name]
    value = context.cast(builder, arguments[1], given, kind)
    if not isinstance(kind, types.Array):
        setattr(data, name, value)
        return
    owner = context.make_array(kind)(context, builder, value=value).meminfo
    with builder.if_then(cgutils.is_not_null(builder, owner)):
        context.nrt.incref(builder, kind, value)
        if name != "retired":
            _retire(context, builder, view, data, kind, getattr(data, name))
        setattr(data, name, value)


@intrinsic  # type: ignore[untyped-decorator]
def address_of(typing_context, struct):
    """The address for :func:`view_at` of a struct (its owner's type); it does not keep the struct alive."""

    def code(context, builder, signature, arguments):
        pointer = structref._Utils(context, builder, signature.args[0]).get_data_pointer(arguments[0])
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(struct), code


def view_at(view: View) -> Any:
    """A function for compiled code that returns the view of the struct at an address, which must be alive."""

    def at(typing_context, address):
        def code(context, builder, _, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return view(types.int64), code

    return intrinsic(at)


def _borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """An array without its owner; other values as they are."""
    if not isinstance(kind, types.Array):
        return value
    array = context.make_array(kind)(context, builder, value=value)
    array.meminfo = cgutils.get_null_value(array.meminfo.type)
    return array._getvalue()


def _retire(context: Any, builder: Any, view: View, data: Any, kind: Any, value: Any) -> None:
    owner = context.make_array(kind)(context, builder, value=value).meminfo
    with builder.if_then(cgutils.is_not_null(builder, owner)):
        count = data.retired_count
        slot = _slot(context, builder, view, data, builder.and_(count, count.type(RETIRED_LIMIT - 1)))
        with builder.if_then(builder.icmp_signed(">=", count, count.type(RETIRED_LIMIT))):
            _free(context, builder, slot)
        builder.store(builder.ptrtoint(owner, ir.IntType(64)), slot)
        data.retired_count = builder.add(count, count.type(1))


def _slot(context: Any, builder: Any, view: View, data: Any, place: Any) -> Any:
    retired = context.make_array(view.fields["retired"])(context, builder, value=data.retired)
    return builder.gep(retired.data, [place])


def _free(context: Any, builder: Any, slot: Any) -> None:
    # numba takes counts out of functions that neither take, return nor allocate what is counted. It leaves
    # those of a module that has any other function of the runtime, even one that is only declared.
    released = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
    cgutils.get_or_insert_function(builder.module, released, "NRT_MemInfo_release")
    pointer = builder.inttoptr(builder.load(slot), cgutils.voidptr_t)
    context.nrt.decref(builder, types.MemInfoPointer(types.voidptr), pointer)


@intrinsic  # type: ignore[untyped-decorator]
def settle(typing_context, view):
    """Free what was retired; no borrowed array may be in use."""

    def code(context, builder, signature, arguments):
        data = _data(context, builder, signature.args[0], arguments[0])
        count = data.retired_count
        some = builder.icmp_signed(">", count, count.type(0))
        with builder.if_then(some, likely=False):
            limit = count.type(RETIRED_LIMIT)
            held = builder.select(builder.icmp_signed("<", count, limit), count, limit)
            with cgutils.for_range(builder, held) as loop:
                _free(context, builder, _slot(context, builder, signature.args[0], data, loop.index))
            data.retired_count = count.type(0)
        return context.get_dummy_value()

    return types.void(view), code

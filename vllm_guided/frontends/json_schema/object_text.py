"""The JSON text of one shape of objects.

In: an :class:`~.shapes.Objects`. Out: an IR node. In any order, the members are one bag; in the order of the
schema, declared properties are a graph and the others follow (:mod:`.object_order`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_guided.errors import ConstraintTooComplex
from vllm_guided.frontends.json_schema.members import bag, members, repeated_names_matter
from vllm_guided.frontends.json_schema.object_order import in_order
from vllm_guided.frontends.json_schema.shapes import Objects
from vllm_guided.grammar import ir

if TYPE_CHECKING:
    from vllm_guided.frontends.json_schema.emitter import Emitter


def object_node(emitter: Emitter, shape: Objects) -> ir.Node:
    """The objects of the shape; ``ir.NOTHING`` if there are none.

    Raises:
        ConstraintTooComplex: counts and wanted members need too many states.
    """
    if len(shape.some) > ir.MAX_WANTED:
        raise ConstraintTooComplex("too many members are asked for by not, oneOf or if at one object")
    found = members(emitter, shape)
    if found is None:
        return ir.NOTHING
    required = sum(slot.required for slot in found.slots)
    least = shape.minimum if shape.minimum > required else 0
    slots = [index for index, slot in enumerate(found.slots) if slot.variants]
    if emitter.any_order and len(slots) > (0 if found.free else 1):
        distinct = repeated_names_matter(found, found.wanted, least - required)
        body = bag(
            emitter, found, max(least, 1), shape.maximum, slots=slots, missing=found.wanted, distinct=distinct
        )
    else:
        body = in_order(emitter, shape, found, least)
    return with_braces(emitter, shape, required, body)


def with_braces(emitter: Emitter, shape: Objects, required: int, body: ir.Node) -> ir.Node:
    """Objects of the members in ``body``, and the empty one where it may be."""
    options = [emitter.layout.enclosed("{", body, "}")]
    if required == 0 and shape.minimum == 0 and not shape.some:
        options.append(emitter.layout.empty("{", "}"))
    return ir.choice(*(option for option in options if not ir.is_nothing(option)))

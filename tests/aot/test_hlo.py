"""What tests read from a compiled program agrees with programs written by hand."""

from hlo import Program, padded_bytes

TPU = """HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (2, {}, must-alias) }, entry=x

%body (p: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %p = (s32[], f32[16,8]{1,0:T(8,128)}) parameter(0)
  %x = f32[16,8]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %slow = f32[16,8]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%inside
}

%until (p: (s32[], f32[16,8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  %p = (s32[], f32[16,8]{1,0:T(8,128)}) parameter(0)
  %at = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %less = pred[]{:T(512)} compare(%at, %bound), direction=LT
}

%gathering (data: u8[1000,3072], which: s32[4]) -> u8[4,3072] {
  %data = u8[1000,3072]{1,0:T(8,128)(4,1)} parameter(0)
  %which = s32[4]{0:T(128)} parameter(1)
  ROOT %taken = u8[4,3072]{1,0:T(8,128)(4,1)} gather(%data, %which), offset_dims={1}
}

ENTRY %main (a: f32[16,8]) -> f32[16,8] {
  %a = f32[16,8]{1,0:T(8,128)} parameter(0)
  %all = u8[1000,3072]{1,0:T(8,128)(4,1)} parameter(1)
  %which = s32[4]{0:T(128)} parameter(2)
  %rows = u8[4,3072]{1,0:T(8,128)(4,1)} fusion(%all, %which), calls=%gathering
  %begin = (s32[], f32[16,8]{1,0:T(8,128)}) tuple(%a, %a)
  %loop = (s32[], f32[16,8]{1,0:T(8,128)}) while(%begin), condition=%until, body=%body
  %sum = f32[16,8]{1,0:T(8,128)} all-reduce(%a), replica_groups=[2,4]<=[8], to_apply=%add
  %go = f32[64]{0} all-reduce-start(%a), replica_groups={{0,1},{2,3}}, to_apply=%add
  %work = f32[16,8]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%inside
  %done = f32[64]{0} all-reduce-done(%go)
  ROOT %out = f32[16,8]{1,0:T(8,128)} copy(%sum)
}
"""

ON_CHIP = """HloModule step, is_scheduled=true

ENTRY %main (a: f32[16,128]) -> f32[16,128] {
  %a = f32[16,128]{1,0:T(8,128)} parameter(0)
  %start = (f32[16,128]{1,0:T(8,128)S(1)}, f32[16,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
  %there = f32[16,128]{1,0:T(8,128)S(1)} copy-done(%start)
  %twice = f32[16,128]{1,0:T(8,128)(2,1)S(1)} fusion(%there, %there), kind=kLoop, calls=%inside
  ROOT %out = f32[16,128]{1,0:T(8,128)} fusion(%twice), kind=kLoop, calls=%inside
}
"""


def test_a_program_is_read() -> None:
    program = Program(TPU)
    assert program.donated == 2
    tile = 16 * 128 * 4  # 8 columns take as much memory as 128
    (copy,) = [each for _, each, _ in program.everything() if each.opcode == "copy"]
    assert (copy.name, padded_bytes(copy), copy.values) == ("out", tile, 16 * 8 * 4)
    # The gather reads four rows of a thousand. Eight rows of u8 are a tile, however few are used.
    gathered = 8 * 3072
    of_loops = 3 * 2 * tile
    of_conditions = 3 * (1 + 4 + 4)
    started = tile + 64 * 4
    assert (
        program.bytes_moved
        == (2 * gathered + 4 * 128)
        + of_loops
        + of_conditions
        + 2 * tile
        + started
        + 2 * tile
        + 2 * tile
    )


def test_what_stays_on_the_chip_is_not_moved() -> None:
    # Read by the copy, written by the last fusion.
    assert Program(ON_CHIP).bytes_moved == 2 * 16 * 128 * 4
